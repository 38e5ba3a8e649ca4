#include "cuda/nvrtc.h"

#include <dlfcn.h>

#include <cstdlib>

namespace gluon_syncbn::cuda {
namespace {

constexpr const char* kVariable = "GLUON_SYNCBN_NVRTC";
constexpr const char* kNames[] = {"libnvrtc.so.11.2", "libnvrtc.so.12", "libnvrtc.so.13"};

/// Sets `missing` if it returns null.
void* open_library(std::string* missing) {
  if (const char* path = std::getenv(kVariable); path && *path) {
    void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) *missing = std::string(kVariable) + " names no library that loads: " + dlerror();
    return library;
  }
  for (const int only_loaded : {RTLD_NOLOAD, 0}) {
    for (const char* name : kNames) {
      if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL | only_loaded)) return library;
    }
  }
  *missing = std::string(
                 "no libnvrtc.so.11.2, libnvrtc.so.12 or libnvrtc.so.13 is loaded or found; "
                 "install that of MXNet's CUDA (Python's package for CUDA 11: "
                 "nvidia-cuda-nvrtc-cu11) and set ") +
             kVariable + " to the path of this file";
  return nullptr;
}

Nvrtc open_nvrtc() {
  Nvrtc nvrtc;
  void* const library = open_library(&nvrtc.missing);
  if (!library) return nvrtc;
  Dl_info info{};
  nvrtc.path = "the library";
  if (const void* any = dlsym(library, "nvrtcVersion"); any && dladdr(any, &info)) {
    nvrtc.path = info.dli_fname;
  }
#define GLUON_SYNCBN_FIND(full, name, ...)                                    \
  nvrtc.name = reinterpret_cast<decltype(nvrtc.name)>(dlsym(library, #full)); \
  if (!nvrtc.name) nvrtc.missing = nvrtc.path + " has no " #full ", which that of CUDA 11.2 has";
  GLUON_SYNCBN_NVRTC_CALLS(GLUON_SYNCBN_FIND)
#undef GLUON_SYNCBN_FIND
  if (!nvrtc.missing.empty()) return nvrtc;
  nvrtc.get_version(&nvrtc.major, &nvrtc.minor);
  // Some NVRTCs look for this library, and not in their own folder.
  const std::string folder = nvrtc.path.substr(0, nvrtc.path.rfind('/') + 1);
  dlopen((folder + "libnvrtc-builtins.so." + nvrtc.version()).c_str(), RTLD_NOW | RTLD_GLOBAL);
  int number = 0;
  nvrtc.count_architectures(&number);
  nvrtc.architectures.resize(static_cast<std::size_t>(number));
  nvrtc.get_architectures(nvrtc.architectures.data());
  return nvrtc;
}

}  // namespace

const Nvrtc& nvrtc() {
  static const Nvrtc nvrtc = open_nvrtc();
  return nvrtc;
}

std::string describe_nvrtc() {
  const std::string& missing = nvrtc().missing;
  return missing.empty() ? nvrtc().version() + " (" + nvrtc().path + ")" : "none: " + missing;
}

}  // namespace gluon_syncbn::cuda
