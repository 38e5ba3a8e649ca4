#include "cuda/nvrtc.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <cstdlib>

namespace gluon_syncbn::cuda {
namespace {

constexpr const char* kNames[] = {"libnvrtc.so.11.2", "libnvrtc.so.12", "libnvrtc.so.13"};

/// Sets `path`, or `missing` if it returns null.
void* open_library(Nvrtc* nvrtc) {
  const auto open = [nvrtc](const char* name, int only_loaded) {
    nvrtc->path = name;
    return dlopen(name, RTLD_NOW | RTLD_LOCAL | only_loaded);
  };
  if (const char* chosen = std::getenv("GLUON_SYNCBN_NVRTC"); chosen && *chosen) {
    void* const library = open(chosen, 0);
    if (!library) {
      nvrtc->missing = std::string("GLUON_SYNCBN_NVRTC names no library that loads: ") + dlerror();
    }
    return library;
  }
  for (const int only_loaded : {RTLD_NOLOAD, 0}) {
    for (const char* name : kNames) {
      if (void* library = open(name, only_loaded)) return library;
    }
  }
  nvrtc->missing =
      "no libnvrtc.so.11.2, libnvrtc.so.12 or libnvrtc.so.13 is loaded or found; install that of "
      "MXNet's CUDA (Python's package for CUDA 11: nvidia-cuda-nvrtc-cu11) and set "
      "GLUON_SYNCBN_NVRTC to the path of this file";
  return nullptr;
}

Nvrtc open_nvrtc() {
  Nvrtc nvrtc;
  void* const library = open_library(&nvrtc);
  if (!library) return nvrtc;
#define GLUON_SYNCBN_FIND(full, name, ...)                                                    \
  nvrtc.name = reinterpret_cast<decltype(nvrtc.name)>(dlsym(library, #full));                 \
  if (!nvrtc.name && nvrtc.missing.empty()) {                                                 \
    nvrtc.missing = nvrtc.path + " has no " #full ", which NVRTC of CUDA 11.2 and later has"; \
  }
  GLUON_SYNCBN_NVRTC_CALLS(GLUON_SYNCBN_FIND)
#undef GLUON_SYNCBN_FIND
  if (!nvrtc.missing.empty()) return nvrtc;
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(nvrtc.get_version), &info)) nvrtc.path = info.dli_fname;
  nvrtc.get_version(&nvrtc.major, &nvrtc.minor);
  // Some NVRTCs look for this library, and not in their own folder.
  dlopen(nvrtc.builtins().c_str(), RTLD_NOW | RTLD_GLOBAL);
  nvrtc.identity = identity_of(nvrtc);  // now, because the path may be relative
  int number = 0;
  nvrtc.count_architectures(&number);
  nvrtc.architectures.resize(static_cast<std::size_t>(number));
  nvrtc.get_architectures(nvrtc.architectures.data());
  return nvrtc;
}

}  // namespace

const Nvrtc& nvrtc() {
  static const auto& nvrtc = *new Nvrtc(open_nvrtc());
  return nvrtc;
}

std::string identity_of(const Nvrtc& nvrtc) {
  std::string identity = nvrtc.version();
  for (const std::string& path : {nvrtc.path, nvrtc.builtins()}) {
    struct stat found{};
    identity += "\n";
    if (stat(path.c_str(), &found) == 0) {
      identity += std::to_string(found.st_size) + " " + std::to_string(found.st_mtime);
    }
  }
  return identity;
}

std::string describe_nvrtc() {
  const std::string& missing = nvrtc().missing;
  return missing.empty() ? nvrtc().version() + " (" + nvrtc().path + ")" : "none: " + missing;
}

}  // namespace gluon_syncbn::cuda
