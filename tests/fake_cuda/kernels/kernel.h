#ifndef GLUON_SYNCBN_TESTS_FAKE_CUDA_KERNELS_KERNEL_H_
#define GLUON_SYNCBN_TESTS_FAKE_CUDA_KERNELS_KERNEL_H_

#include <cuda_runtime_api.h>

#include <functional>

namespace fake_cuda {

/// What MXNet's kernel of that (mangled) name does with its arguments, which are read at once. A
/// kernel that is not known ends the process with its name.
std::function<void()> kernel(const char* name, dim3 grid, dim3 block, void** arguments);

}  // namespace fake_cuda

#endif  // GLUON_SYNCBN_TESTS_FAKE_CUDA_KERNELS_KERNEL_H_
