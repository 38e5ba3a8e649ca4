#ifndef GLUON_SYNCBN_TESTS_FAKE_CUDA_SETTINGS_H_
#define GLUON_SYNCBN_TESTS_FAKE_CUDA_SETTINGS_H_

#include <atomic>
#include <string>

namespace fake_cuda {

/// A number from the environment (FAKE_CUDA_ and its name), which tests may change.
using Setting = std::atomic<long>;

struct Settings {
  Setting devices;
  Setting version;  ///< of driver and runtime, as cudaDriverGetVersion tells it
  Setting memory;   ///< MiB of each device
  Setting delay;    ///< each operation of a stream waits up to so many microseconds before it runs
  Setting seed;     ///< of these delays
  Setting peers;  ///< 0: no peer access, 1: it works, 2: it is reported but reads what is no number
  Setting tell;   ///< 1: calls that fail go to stderr

  // Ways to be no CUDA at all, to see that tests notice.
  Setting ignore_event_synchronize;
  Setting ignore_stream_wait;
  Setting ignore_stream_synchronize;
};

Settings& settings();
/// The setting called so; ends the process where there is none.
Setting& setting(const std::string& name);

}  // namespace fake_cuda

#endif  // GLUON_SYNCBN_TESTS_FAKE_CUDA_SETTINGS_H_
