// Times the calls between which backend.cc chooses, on one GPU: waits of a stream for events, which
// streams of the same GPU reach, and the calls that do the same from the host. 1 thread and 8
// threads at once, with streams of their own. "probe_gpu small" only shows that the program runs.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/check.h"
#include "cuda/gpu.h"
#include "cuda/kernels/per_channel.h"
#include "support/ranks.h"

namespace gluon_syncbn::tests {
namespace {

using Clock = std::chrono::steady_clock;
using Rows = std::vector<std::pair<std::string, std::vector<double>>>;

double microseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

struct TimedEvent {
  cudaEvent_t event = nullptr;
  explicit TimedEvent(unsigned flags = cudaEventDisableTiming) {
    cuda::check(cudaEventCreateWithFlags(&event, flags), "cudaEventCreate", 0);
  }
  ~TimedEvent() { cudaEventDestroy(event); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;
  void record(const cuda::Stream& on) const {
    cuda::check(cudaEventRecord(event, on.handle()), "cudaEventRecord", 0);
  }
  bool is_missing() const {
    if (cudaEventQuery(event) != cudaErrorNotReady) return false;
    cudaGetLastError();
    return true;
  }
};

/// A stream of this library, a stream of a peer, and the peer's events.
class Rig {
 public:
  explicit Rig(bool small) : bytes_(small ? 1 << 12 : 64 << 20), peers_(14) {}

  Rows run(int repeats) {
    for (int i = 0; i < repeats; ++i) {
      time("launch of a kernel", [&] { launch(); });
      time("record of an event", [&] { peers_[0].record(own_); });
      own_.synchronize();
      time("query of an event, reached", [&] { peers_[0].is_missing(); });
      time("synchronize with an event, reached", [&] { cudaEventSynchronize(peers_[0].event); });
      for (const bool reached : {true, false}) {
        for (const std::size_t number : {1, 7, 14}) {
          wait_on_gpu(number, reached);
          if (!reached) wait_on_host(number);
        }
      }
    }
    return std::move(rows_);
  }

 private:
  template <class Call>
  void time(const std::string& name, const Call& call) {
    const auto begin = Clock::now();
    call();
    add(name, microseconds_since(begin));
  }
  void add(const std::string& name, double microseconds) {
    auto row = std::find_if(rows_.begin(), rows_.end(), [&](auto& at) { return at.first == name; });
    if (row == rows_.end()) row = rows_.insert(row, {name, {}});
    row->second.push_back(microseconds);
  }

  void launch() {
    auto* numbers = static_cast<double*>(numbers_.data());
    const cuda::PerChannel<cuda::ReadNumbers> body{{numbers, numbers + 1}, 1};
    cuda::launch(body, body.blocks(), &own_);
  }
  /// Keeps the peer's stream busy for long enough to call what follows, and records its events.
  void begin(std::size_t number) {
    for (int i = 0; i < 4; ++i) peer_.copy(to_.data(), from_.data(), bytes_);
    for (std::size_t i = 0; i < number; ++i) peers_[i].record(peer_);
    end_of_peer_.record(peer_);
  }
  /// How long the GPU's work after that of the peer comes after it.
  void end(const std::string& name) {
    launch();
    end_of_own_.record(own_);
    own_.synchronize();
    peer_.synchronize();
    float milliseconds = 0;
    cuda::check(cudaEventElapsedTime(&milliseconds, end_of_peer_.event, end_of_own_.event),
                "cudaEventElapsedTime", 0);
    add(name, 1e3 * static_cast<double>(milliseconds));
  }

  void wait_on_gpu(std::size_t number, bool reached) {
    const std::string name =
        std::to_string(number) + " stream waits, " + (reached ? "reached" : "not reached");
    begin(number);
    if (reached) peer_.synchronize();
    time(name, [&] {
      for (std::size_t i = 0; i < number; ++i) {
        cudaStreamWaitEvent(own_.handle(), peers_[i].event, 0);
      }
    });
    if (reached) return own_.synchronize();
    time("query of an event, not reached", [&] { peers_[0].is_missing(); });
    end("peers' end to the end of a kernel after " + std::to_string(number) + " stream waits");
  }
  void wait_on_host(std::size_t number) {
    begin(number);
    for (std::size_t i = 0; i < number; ++i) {
      while (peers_[i].is_missing()) {
        const auto now = Clock::now();
        while (microseconds_since(now) < 3) std::this_thread::yield();
      }
    }
    end("peers' end to the end of a kernel after " + std::to_string(number) + " queries");
  }

  const std::size_t bytes_;
  const cuda::OnDevice on_device_{0};
  cuda::Stream own_{0};
  cuda::Stream peer_{0};
  std::deque<TimedEvent> peers_;
  const TimedEvent end_of_peer_{0};
  const TimedEvent end_of_own_{0};
  const cuda::Memory to_{cuda::Memory::Place::kDevice, 0, bytes_};
  const cuda::Memory from_{cuda::Memory::Place::kDevice, 0, bytes_};
  const cuda::Memory numbers_{cuda::Memory::Place::kDevice, 0, 64};
  Rows rows_;
};

std::string quantiles(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  char text[64];
  std::snprintf(text, sizeof text, "%.1f (%.1f)", values[values.size() / 2],
                values[values.size() * 9 / 10]);
  return text;
}

void time_calls(int repeats, bool small) {
  std::printf("| call | 1 thread, us: median (90 %%) | 8 threads at once |\n| --- | --- | --- |\n");
  Rows of_one;
  Rows of_eight;
  for (Rows* rows : {&of_one, &of_eight}) {
    std::vector<Rows> of_threads(rows == &of_one ? 1 : 8);
    run_ranks(of_threads.size(), [&](std::size_t i) { of_threads[i] = Rig(small).run(repeats); });
    *rows = of_threads[0];
    for (std::size_t thread = 1; thread < of_threads.size(); ++thread) {
      for (std::size_t i = 0; i < rows->size(); ++i) {
        auto& more = of_threads[thread][i].second;
        (*rows)[i].second.insert((*rows)[i].second.end(), more.begin(), more.end());
      }
    }
  }
  for (std::size_t i = 0; i < of_one.size(); ++i) {
    std::printf("| %s | %s | %s |\n", of_one[i].first.c_str(), quantiles(of_one[i].second).c_str(),
                quantiles(of_eight[i].second).c_str());
  }
}

/// How long it takes until the threads of 8 contexts run what is posted to them.
void time_wakes(int repeats) {
  for (const auto pause : {std::chrono::microseconds(0), std::chrono::microseconds(2000)}) {
    std::vector<double> times;
    for (int i = 0; i < repeats; ++i) {
      std::this_thread::sleep_for(pause);
      std::atomic<int> awake{0};
      const auto begin = Clock::now();
      for (int index = 0; index < 8; ++index) cuda::Gpu::of(index).post([&] { ++awake; });
      while (awake < 8) std::this_thread::yield();
      times.push_back(microseconds_since(begin));
    }
    std::printf("| 8 threads %s | | %s |\n", pause.count() ? "wake" : "that do not sleep yet begin",
                quantiles(times).c_str());
  }
}

}  // namespace
}  // namespace gluon_syncbn::tests

int main(int count, char** words) {
  try {
    const bool small = count == 2 && words[1] == std::string("small");
    setenv("GLUON_SYNCBN_SHARE_GPUS", "1", 1);
    gluon_syncbn::tests::time_calls(small ? 1 : 200, small);
    gluon_syncbn::tests::time_wakes(small ? 2 : 200);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "probe_gpu: %s\n", error.what());
    return 1;
  }
}
