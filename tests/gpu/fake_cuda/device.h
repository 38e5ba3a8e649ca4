#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <mutex>
#include <set>

#include "stream.h"

namespace fake_cuda {

/// A device and its primary context.
class Device {
 public:
  explicit Device(int ordinal) : ordinal_(ordinal) {}

  int ordinal() const { return ordinal_; }

  /// What a fault has left for every later call, or cudaSuccess.
  cudaError_t error() const { return error_; }
  void break_with(cudaError_t error);
  void mend() { error_ = cudaSuccess; }

  /// Makes the context if there is none yet.
  cudaError_t make_context();
  bool has_context();

  cudaError_t enable_peer(int peer);
  bool reaches(int peer);

  cudaError_t take_memory(std::size_t bytes);
  void give_back_memory(std::size_t bytes);
  std::size_t free_memory();
  static std::size_t all_memory();

  cudaStream_t new_stream();
  void remove_stream(cudaStream_t stream);
  /// Waits for all streams.
  void synchronize();

 private:
  const int ordinal_;
  std::atomic<cudaError_t> error_{cudaSuccess};
  std::mutex mutex_;  // of what follows
  bool has_context_ = false;
  std::set<int> peers_;
  std::size_t used_ = 0;
  std::set<cudaStream_t> streams_;
  long streams_so_far_ = 0;
  std::deque<HardwareQueue> hardware_;
};

/// Any device that settings could make exist.
Device& device(int ordinal);
bool exists(int ordinal);

}  // namespace fake_cuda
