#include "cuda/compiler.h"

#include <locale.h>

#include <algorithm>
#include <iterator>

#include "common/code_cache.h"
#include "common/error.h"
#include "common/report.h"
#include "cuda/nvrtc.h"

namespace gluon_syncbn::cuda {
namespace {

// -default-device: a function without __device__ is one for the GPU.
constexpr const char* kOptions[] = {"-std=c++17", "-default-device"};

// Of Tegra processors, whose machine code other GPUs do not run.
constexpr int kTegra[] = {53, 62, 72, 87, 101, 110};

bool is_machine_code(const std::string& architecture) { return architecture.rfind("sm_", 0) == 0; }

/// Keeps the locale of the calling thread, which NVRTC 11 and 12 change.
class KeepsLocale {
 public:
  KeepsLocale() = default;
  ~KeepsLocale() { uselocale(before_); }
  KeepsLocale(const KeepsLocale&) = delete;
  KeepsLocale& operator=(const KeepsLocale&) = delete;

 private:
  const locale_t before_ = uselocale(nullptr);
};

/// An NVRTC program, from its text to its code.
class Program {
 public:
  explicit Program(const std::string& text) {
    std::vector<const char*> names;
    std::vector<const char*> texts;
    for (const auto& [name, header] : kernel_headers()) {
      names.push_back(name);
      texts.push_back(header);
    }
    const int failed = nvrtc().create(&program_, text.c_str(), "gluon_syncbn.cu",
                                      static_cast<int>(names.size()), texts.data(), names.data());
    GLUON_SYNCBN_ENFORCE(!failed, "NVRTC makes no program");
  }
  ~Program() { nvrtc().destroy(&program_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  bool compile(const std::string& architecture) {
    const std::string option = "-arch=" + architecture;
    const char* const options[] = {option.c_str(), kOptions[0], kOptions[1]};
    const KeepsLocale keeps_locale;
    return nvrtc().compile(program_, static_cast<int>(std::size(options)), options) == 0;
  }
  std::string log() const { return text(nvrtc().log_size, nvrtc().log).c_str(); }
  std::string code(const std::string& architecture) const {
    return is_machine_code(architecture) ? text(nvrtc().cubin_size, nvrtc().cubin)
                                         : text(nvrtc().ptx_size, nvrtc().ptx);
  }

 private:
  template <class Size, class Get>
  std::string text(const Size& size, const Get& get) const {
    std::size_t bytes = 0;
    GLUON_SYNCBN_ENFORCE(size(program_, &bytes) == 0, "NVRTC gives no size");
    std::string text(bytes, '\0');
    GLUON_SYNCBN_ENFORCE(get(program_, text.data()) == 0, "NVRTC gives no text");
    return text;
  }

  NvrtcProgram* program_ = nullptr;
};

}  // namespace

std::string KernelSource::text() const {
  return "#include \"cuda/kernels/program.h\"\nGLUON_SYNCBN_KERNEL(" + name + ", " +
         std::to_string(bytes) + ", " + std::to_string(alignment) + ", " + body + ")\n";
}

std::string architecture_for(int capability) {
  if (!nvrtc().missing.empty()) throw Error("GPU contexts need NVRTC: " + nvrtc().missing);
  int best = 0;
  for (const int each : nvrtc().architectures) {
    const bool is_tegra = std::count(std::begin(kTegra), std::end(kTegra), each) > 0;
    if (each == capability || (each < capability && !is_tegra)) best = std::max(best, each);
  }
  if (best == 0) {
    throw Error("NVRTC " + nvrtc().version() + " compiles for no GPU of compute capability " +
                std::to_string(capability / 10) + "." + std::to_string(capability % 10) +
                ": use an earlier CUDA");
  }
  return (best / 10 == capability / 10 ? "sm_" : "compute_") + std::to_string(best);
}

std::string compile(const std::string& text, const std::string& name,
                    const std::string& architecture) {
  Program program(text);
  if (program.compile(architecture)) return program.code(architecture);
  const std::string error = "NVRTC " + nvrtc().version() + " (" + nvrtc().path +
                            ") does not compile '" + name + "' for " + architecture;
  report(error + ":\n" + text + program.log());
  throw Error(error + "; its log has been printed");
}

std::string code_of(const KernelSource& kernel, const std::string& architecture) {
  std::string key = nvrtc().identity + "\n" + architecture + "\n" + kernel.text();
  for (const char* option : kOptions) key += std::string(option) + "\n";
  for (const auto& [name, header] : kernel_headers()) key += std::string(name) + "\n" + header;
  const CodeFile file(key);
  std::string code = file.load();
  if (code.empty()) {
    code = compile(kernel.text(), kernel.name, architecture);
    file.save(code);
  }
  return code;
}

}  // namespace gluon_syncbn::cuda
