#pragma once

#include <cstddef>
#include <string>

// The part of the CUDA driver's interface that this library uses. It is declared here, because
// users have the driver (libcuda.so.1), but no CUDA toolkit with its headers.

struct CUctx_st;
struct CUevent_st;
struct CUfunc_st;
struct CUmod_st;
struct CUstream_st;

namespace gluon_syncbn::cuda {

using Address = unsigned long long;  // CUdeviceptr

/// The results of the driver that this library distinguishes, by their numbers in cuda.h.
enum Result {
  kSuccess = 0,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kInvalidImage = 200,
  kNoBinaryForGpu = 209,
  kInvalidPtx = 218,
  kNoPtxCompiler = 221,
  kUnsupportedPtxVersion = 222,
  kNotReady = 600,
};
// Attributes and flags.
constexpr int kComputeCapabilityMajor = 75;
constexpr int kComputeCapabilityMinor = 76;
constexpr unsigned kNonBlocking = 1;
constexpr unsigned kDisableTiming = 2;
constexpr unsigned kPortable = 1;
constexpr unsigned kDeviceMap = 2;
constexpr int kErrorLog = 5;  // CU_JIT_ERROR_LOG_BUFFER
constexpr int kErrorLogBytes = 6;

/// The functions: CALL(name in the driver, name here, types of the arguments).
#define GLUON_SYNCBN_DRIVER_CALLS(CALL)                                                         \
  CALL(cuInit, init, unsigned flags)                                                            \
  CALL(cuDriverGetVersion, version, int* version)                                               \
  CALL(cuGetErrorName, error_name, int result, const char** name)                               \
  CALL(cuGetErrorString, error_string, int result, const char** text)                           \
  CALL(cuDeviceGetCount, device_count, int* count)                                              \
  CALL(cuDeviceGet, device, int* device, int ordinal)                                           \
  CALL(cuDeviceGetName, device_name, char* name, int bytes, int device)                         \
  CALL(cuDeviceGetAttribute, attribute, int* value, int attribute, int device)                  \
  CALL(cuDevicePrimaryCtxRetain, retain_context, CUctx_st** context, int device)                \
  CALL(cuCtxGetCurrent, context, CUctx_st** context)                                            \
  CALL(cuCtxSetCurrent, set_context, CUctx_st* context)                                         \
  CALL(cuCtxGetStreamPriorityRange, stream_priorities, int* least, int* greatest)               \
  CALL(cuStreamCreateWithPriority, create_stream, CUstream_st** stream, unsigned flags,         \
       int priority)                                                                            \
  CALL(cuStreamDestroy_v2, destroy_stream, CUstream_st* stream)                                 \
  CALL(cuStreamSynchronize, synchronize, CUstream_st* stream)                                   \
  CALL(cuEventCreate, create_event, CUevent_st** event, unsigned flags)                         \
  CALL(cuEventDestroy_v2, destroy_event, CUevent_st* event)                                     \
  CALL(cuEventRecord, record, CUevent_st* event, CUstream_st* stream)                           \
  CALL(cuEventQuery, query, CUevent_st* event)                                                  \
  CALL(cuMemAlloc_v2, allocate, Address* begin, std::size_t bytes)                              \
  CALL(cuMemFree_v2, free, Address begin)                                                       \
  CALL(cuMemHostAlloc, allocate_host, void** begin, std::size_t bytes, unsigned flags)          \
  CALL(cuMemFreeHost, free_host, void* begin)                                                   \
  CALL(cuMemGetInfo_v2, memory, std::size_t* free_bytes, std::size_t* all_bytes)                \
  CALL(cuMemcpyAsync, copy, Address to, Address from, std::size_t bytes, CUstream_st* stream)   \
  CALL(cuMemsetD8Async, fill, Address begin, unsigned char byte, std::size_t bytes,             \
       CUstream_st* stream)                                                                     \
  CALL(cuModuleLoadDataEx, load_module, CUmod_st** module, const void* code, unsigned number,   \
       int* options, void** values)                                                             \
  CALL(cuModuleGetFunction, function, CUfunc_st** function, CUmod_st* module, const char* name) \
  CALL(cuLaunchKernel, launch, CUfunc_st* function, unsigned grid_x, unsigned grid_y,           \
       unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,  \
       CUstream_st* stream, void** arguments, void** extra)

struct Driver {
#define GLUON_SYNCBN_MEMBER(full, name, ...) int (*name)(__VA_ARGS__) = nullptr;
  GLUON_SYNCBN_DRIVER_CALLS(GLUON_SYNCBN_MEMBER)
#undef GLUON_SYNCBN_MEMBER

  int (*load_function)(CUfunc_st* function) = nullptr;  ///< null before CUDA 12.4

  std::string missing;  ///< why there is no driver; empty if there is one
};

/// Opens libcuda.so.1 in the first call. Does not initialize the driver, because the children of a
/// process that has done so, and then forks, get no GPU.
const Driver& driver();

/// The version of CUDA that the driver supports, such as "12.4".
std::string driver_cuda();

/// Such as "out of memory (CUDA_ERROR_OUT_OF_MEMORY)".
std::string text_of(int result);

/// Throws Error, which names `what` and the GPU, unless the `result` of a call is success.
void check(int result, const std::string& what, int ordinal);

/// Keeps the context of the calling thread: the destructor restores it. Needs no driver, and loads
/// none: the context can change only if MXNet has loaded the driver.
class KeepsContext {
 public:
  KeepsContext();
  ~KeepsContext();
  KeepsContext(const KeepsContext&) = delete;
  KeepsContext& operator=(const KeepsContext&) = delete;

 private:
  CUctx_st* before_ = nullptr;
};

}  // namespace gluon_syncbn::cuda
