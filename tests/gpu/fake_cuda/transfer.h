#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace fake_cuda {

// The calls of memory, which the runtime and the driver share. A copy to or from memory that is not
// pinned is done with it when the call returns, and one from host to host altogether, as CUDA does
// it.

/// Rows of a copy: one, where memory is not pitched.
struct Block {
  char* to;
  const char* from;
  std::size_t to_pitch;
  std::size_t from_pitch;
  std::size_t width;
  std::size_t height;
};

/// One row.
Block row(void* to, const void* from, std::size_t bytes);

cudaError_t copy(Block block, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t set(void* begin, int value, std::size_t bytes, cudaStream_t stream);
/// Memory of a device, or of the host with -1.
cudaError_t take(void** begin, std::size_t bytes, int ordinal);
cudaError_t give_back(void* begin, bool on_device);

}  // namespace fake_cuda
