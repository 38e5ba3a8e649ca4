#ifndef GLUON_SYNCBN_TESTS_FAKE_CUDA_LIBRARIES_HANDLE_H_
#define GLUON_SYNCBN_TESTS_FAKE_CUDA_LIBRARIES_HANDLE_H_

// What the imitated libraries have in common: objects by handle, types by number, and work for
// streams.

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <type_traits>

#include "die.h"
#include "fake_cuda.h"
#include "kernels/values.h"

namespace fake_cuda {

/// Status codes, of which cuDNN and cuBLAS have these two in common.
constexpr int kSuccess = 0;
constexpr int kExecutionFailed = 8;  ///< cuDNN's; cuBLAS has 13

/// A cudnnHandle_t or cublasHandle_t.
struct Handle {
  cudaStream_t stream = nullptr;
};

template <class T>
int create(T** handle) {
  *handle = std::make_unique<T>().release();
  return kSuccess;
}
template <class T>
int destroy(T* handle) {
  const std::unique_ptr<T> last(handle);
  return kSuccess;
}

/// Types have the same numbers in cudnnDataType_t and cudaDataType_t.
constexpr int kFloat = 0;
constexpr int kDouble = 1;

/// An array of that type.
inline Values array(int type, const void* address) {
  static const char* const names[] = {"float*", "double*", "half_t*"};
  if (type < 0 || type > 2) die("type " + std::to_string(type) + " of a library is not imitated");
  return Values({names[type], {}}, &address);
}

/// A scalar for arrays of that type: double for double, else float.
inline double scalar(int type, const void* address) {
  return type == kDouble ? *static_cast<const double*>(address)
                         : *static_cast<const float*>(address);
}

/// Puts work on the handle's stream. What it captures is copied byte by byte, and is searched for
/// memory that the device does not reach.
template <class Work>
int put(const Handle* handle, const char* name, const Work& work, int failed = kExecutionFailed) {
  static_assert(std::is_trivially_copyable_v<Work>, "the runtime copies bytes");
  const auto run = [](const void* given, long) { (*static_cast<const Work*>(given))(); };
  const cudaError_t status = fakeCudaLaunch(name, &work, sizeof work, run, 1, handle->stream);
  return status == cudaSuccess ? kSuccess : failed;
}

}  // namespace fake_cuda

#endif  // GLUON_SYNCBN_TESTS_FAKE_CUDA_LIBRARIES_HANDLE_H_
