#pragma once

// What tests set, order and count (fake_cuda.h), from inside.

#include <cuda_runtime_api.h>

#include <atomic>
#include <string>

namespace fake_cuda {

/// Where a test asks for what the fake is not. To go on would prove nothing.
[[noreturn]] void die(const std::string& why);

/// A number from the environment (FAKE_CUDA_ and its name), which tests may change.
using Setting = std::atomic<long>;

struct Settings {
  Setting devices{8};
  Setting version{11020};  ///< of driver and runtime, as cudaDriverGetVersion returns it
  Setting memory{4096};    ///< MiB of each device
  Setting delay{
      100};  ///< each operation of a stream waits up to so many microseconds before it runs
  /// Streams of a device share so many hardware queues, by the order in which they are made.
  Setting queues{8};
  Setting order{0};          ///< of emulated kernels (emulated_kernel.h)
  Setting capability{80};    ///< compute capability of all devices
  Setting nvrtc{1199};       ///< version of NVRTC; no real one has this one
  Setting architecture{80};  ///< the only one that NVRTC knows
  /// This device is lost: its streams stand still, without an error, until the setting changes.
  Setting lost{-1};

  // Ways to be no CUDA at all, to see that tests notice.
  Setting ignore_event_synchronize{0};
  Setting ignore_stream_synchronize{0};
  Setting ignore_barriers{0};  ///< of kernels in PTX
};
Settings& settings();

/// Notes that a call was made on a device, or on none (-1).
void count(const std::string& call, int device);

/// The error to return at this point now, or cudaSuccess. Where no fault is ordered it takes no
/// lock, in which the thread sanitizer would see an order between the streams that ask.
cudaError_t fault_at(const char* point, int device);

/// Whether CUDA gives up the device after this error.
bool is_sticky(cudaError_t error);

}  // namespace fake_cuda
