#pragma once

#include <cstddef>
#include <string>
#include <vector>

// The part of the interface of NVRTC that this library uses, and that CUDA 11.2 has. NVRTC is
// NVIDIA's compiler for programs that run. MXNet for CUDA is linked with it.

namespace gluon_syncbn::cuda {

struct NvrtcProgram;

/// The functions: CALL(name in NVRTC, name here, types of the arguments).
#define GLUON_SYNCBN_NVRTC_CALLS(CALL)                                                           \
  CALL(nvrtcVersion, get_version, int* major, int* minor)                                        \
  CALL(nvrtcGetNumSupportedArchs, count_architectures, int* number)                              \
  CALL(nvrtcGetSupportedArchs, get_architectures, int* architectures)                            \
  CALL(nvrtcCreateProgram, create, NvrtcProgram** program, const char* source, const char* name, \
       int headers, const char* const* texts, const char* const* names)                          \
  CALL(nvrtcDestroyProgram, destroy, NvrtcProgram** program)                                     \
  CALL(nvrtcCompileProgram, compile, NvrtcProgram* program, int number,                          \
       const char* const* options)                                                               \
  CALL(nvrtcGetProgramLogSize, log_size, NvrtcProgram* program, std::size_t* bytes)              \
  CALL(nvrtcGetProgramLog, log, NvrtcProgram* program, char* log)                                \
  CALL(nvrtcGetCUBINSize, cubin_size, NvrtcProgram* program, std::size_t* bytes)                 \
  CALL(nvrtcGetCUBIN, cubin, NvrtcProgram* program, char* code)                                  \
  CALL(nvrtcGetPTXSize, ptx_size, NvrtcProgram* program, std::size_t* bytes)                     \
  CALL(nvrtcGetPTX, ptx, NvrtcProgram* program, char* code)

struct Nvrtc {
#define GLUON_SYNCBN_MEMBER(full, name, ...) int (*name)(__VA_ARGS__) = nullptr;
  GLUON_SYNCBN_NVRTC_CALLS(GLUON_SYNCBN_MEMBER)
#undef GLUON_SYNCBN_MEMBER

  std::string missing;  ///< why there is no NVRTC; empty if there is one
  int major = 0;
  int minor = 0;
  std::string path;
  std::string identity;            ///< see identity_of()
  std::vector<int> architectures;  ///< that it compiles for, such as 86

  std::string version() const { return std::to_string(major) + "." + std::to_string(minor); }
  /// The path of the library that compile() needs.
  std::string builtins() const {
    return path.substr(0, path.rfind('/') + 1) + "libnvrtc-builtins.so." + version();
  }
};

/// Opens NVRTC in the first call: the file that GLUON_SYNCBN_NVRTC names, or the NVRTC that is
/// loaded, or one that the dynamic linker finds.
const Nvrtc& nvrtc();

/// What its code depends on: its version, and sizes and times of its two files, because a fix may
/// keep the version. Not their build IDs, which NVIDIA's packages for CUDA 11 have overwritten.
std::string identity_of(const Nvrtc& nvrtc);

/// "11.8 (/path/of/libnvrtc.so.11.2)", or "none: " and the reason.
std::string describe_nvrtc();

}  // namespace gluon_syncbn::cuda
