#include "cuda/kernel.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "common/error.h"
#include "common/watchdog.h"
#include "cuda/driver.h"
#include "cuda/nvrtc.h"
#include "cuda/spelling.h"

namespace gluon_syncbn::cuda {
namespace {

std::string identifier(std::string name) {
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

/// Says what to do if the driver does not take the code.
std::string advice(int result) {
  const std::string compiler = "NVRTC " + nvrtc().version() + " (" + nvrtc().path + ")";
  constexpr int kRefused[] = {kInvalidImage, kNoBinaryForGpu, kInvalidPtx, kUnsupportedPtxVersion};
  if (std::count(std::begin(kRefused), std::end(kRefused), result) > 0) {
    return "; the driver is for CUDA up to " + driver_cuda() + ", and " + compiler +
           " has compiled the kernel: install a newer driver, or set GLUON_SYNCBN_NVRTC to an "
           "NVRTC that suits this driver and this GPU";
  }
  if (result != kNoPtxCompiler) return "";
  return "; " + compiler +
         " does not know this GPU, and the driver compiles its PTX with "
         "libnvidia-ptxjitcompiler.so: mount this library into the container, as "
         "NVIDIA_DRIVER_CAPABILITIES=compute,utility does, or set GLUON_SYNCBN_NVRTC to an NVRTC "
         "that knows this GPU";
}

/// Loads code to the GPU of the thread's context.
CUmod_st* load_module(const std::string& code, const std::string& what, int ordinal) {
  CUmod_st* module = nullptr;
  std::string log(4096, '\0');
  int options[] = {kErrorLog, kErrorLogBytes};
  void* values[] = {log.data(), reinterpret_cast<void*>(log.size())};
  const int result = driver().load_module(&module, code.c_str(), 2, options, values);
  try {
    check(result, what, ordinal);
  } catch (const Error& error) {
    log.resize(log.find_last_not_of(std::string("\n\0", 2)) + 1);
    throw Error(error.what() + (log.empty() ? "" : ": " + log) + advice(result));
  }
  return module;
}

}  // namespace

Kernel::Kernel(const std::type_info& body, const char* name, std::size_t bytes,
               std::size_t alignment)
    : name_(std::string("kernel '") + name + "'"),
      source_{spelling_of(body), identifier(name), bytes, alignment} {}

const std::string& Kernel::code_for(const std::string& architecture) {
  // Peers may wait for this device. The pause ends before the GPU is asked, which may be lost.
  const Watchdog::Pause pause;
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string& code = codes_[architecture];
  if (code.empty()) code = code_of(source_, architecture);
  return code;
}

CUfunc_st* Kernel::load(int ordinal) {
  auto& function = functions_.at(static_cast<std::size_t>(ordinal));
  if (CUfunc_st* const there = function) return there;
  const std::string& code = code_for(architecture_for(compute_capability(ordinal)));
  const OnDevice on_device(ordinal);
  CUmod_st* const module = load_module(code, name_, ordinal);
  CUfunc_st* found = nullptr;
  check(driver().function(&found, module, source_.name.c_str()), name_, ordinal);
  // The driver may otherwise load it at the first launch.
  if (driver().load_function) check(driver().load_function(found), name_, ordinal);
  // If another thread has loaded it meanwhile, either will do.
  return function = found;
}

void Kernel::launch(const void* body, std::int64_t blocks, int threads, Stream* stream) {
  if (blocks == 0) return;
  if (blocks > std::numeric_limits<std::int32_t>::max()) {
    throw Error(name_ + " needs " + std::to_string(blocks) + " blocks, more than CUDA allows");
  }
  CUfunc_st* const function = load(stream->ordinal());
  const OnDevice on_device(stream->ordinal());
  void* arguments[] = {const_cast<void*>(body)};
  check(
      driver().launch(function, static_cast<unsigned>(blocks), 1, 1, static_cast<unsigned>(threads),
                      1, 1, 0, stream->handle(), arguments, nullptr),
      name_ + " or work before it", stream->ordinal());
}

}  // namespace gluon_syncbn::cuda
