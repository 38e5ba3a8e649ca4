#include "cuda/driver.h"

#include <dlfcn.h>

#include <atomic>

#include "common/error.h"

namespace gluon_syncbn::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

Driver open_driver() {
  Driver driver;
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    driver.missing = dlerror();
    return driver;
  }
#define GLUON_SYNCBN_FIND(full, name, ...)                                      \
  driver.name = reinterpret_cast<decltype(driver.name)>(dlsym(library, #full)); \
  if (!driver.name) driver.missing = std::string(kLibrary) + " has no " #full;
  GLUON_SYNCBN_DRIVER_CALLS(GLUON_SYNCBN_FIND)
#undef GLUON_SYNCBN_FIND
  driver.load_function =
      reinterpret_cast<decltype(driver.load_function)>(dlsym(library, "cuFuncLoad"));
  return driver;
}

/// Whether the process has loaded the driver. MXNet for CUDA is linked with it.
bool is_loaded() {
  static std::atomic<bool> is_known{false};
  if (!is_known) is_known = dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD) && driver().missing.empty();
  return is_known;
}

}  // namespace

const Driver& driver() {
  static const auto& driver = *new Driver(open_driver());
  return driver;
}

std::string driver_cuda() {
  int version = 0;
  driver().version(&version);
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string text_of(int result) {
  const char* text = nullptr;
  const char* name = nullptr;
  driver().error_string(result, &text);
  driver().error_name(result, &name);
  return std::string(text ? text : "unknown error") + " (" +
         (name ? name : std::to_string(result)) + ")";
}

void check(int result, const std::string& what, int ordinal) {
  if (result == kSuccess) return;
  throw Error("CUDA: " + what + " on gpu(" + std::to_string(ordinal) +
              ") failed: " + text_of(result));
}

KeepsContext::KeepsContext() {
  if (is_loaded()) driver().context(&before_);
}
KeepsContext::~KeepsContext() {
  if (!is_loaded()) return;
  CUctx_st* now = nullptr;
  driver().context(&now);
  if (now != before_) driver().set_context(before_);
}

}  // namespace gluon_syncbn::cuda
