// Times the calls that cuda/backend.cc makes, on one GPU, beside those that it could make instead:
// waits of a stream for events of peers, and messages in memory of the GPU. "time_calls small" only
// shows that the program runs.

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/driver.h"
#include "cuda/gpu.h"
#include "cuda/kernels/phases.h"
#include "timing.h"

namespace gluon_syncbn::tests {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kPeers = 7;
constexpr std::int64_t kChannels = 2048;
constexpr std::size_t kNumbers = 2 * kChannels;  // of a message

/// The times of each call, in the order in which they were made first.
class Table {
 public:
  void add(const std::string& call, double microseconds) {
    for (auto& [name, times] : rows_) {
      if (name == call) return times.push_back(microseconds);
    }
    rows_.push_back({call, {microseconds}});
  }
  template <class Call>
  void time(const std::string& name, const Call& call) {
    const auto begin = Clock::now();
    call();
    add(name, std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  void print() const {
    std::printf("| call | us: median | 90 %% |\n| --- | --- | --- |\n");
    for (const auto& [name, times] : rows_) {
      std::printf("| %s | %.1f | %.1f |\n", name.c_str(), quantile(times, 0.5),
                  quantile(times, 0.9));
    }
  }

 private:
  std::vector<std::pair<std::string, std::vector<double>>> rows_;
};

/// A merge of the messages of 8 devices, which lie in one place.
class Merge {
 public:
  explicit Merge(cuda::Memory::Place place)
      : messages_(place, 0, (kPeers + 1) * kNumbers * sizeof(double)) {
    cuda::Stream stream(0);
    for (const cuda::Memory* each : {&messages_, &written_, &beta_}) {
      stream.zero(each->data(), each->bytes());
    }
    stream.synchronize();
    auto* const numbers = static_cast<double*>(messages_.data());
    for (std::size_t i = 0; i <= kPeers; ++i) merge_.add(numbers + i * kNumbers, 1);
    work_.kind = {DType::kFloat32, {1, kChannels, 1}};
    work_.eps = 1e-5;
    work_.beta = beta_.data();
    auto* const mean = static_cast<double*>(written_.data());
    const std::shared_ptr<void> kept_here;
    saved_ = {{kept_here, mean}, {kept_here, mean + kChannels}, {kept_here, mean + kNumbers}, 0};
  }
  void launch(cuda::Stream* stream) const { launch_outputs(work_, merge_, saved_, {stream, {}}); }

 private:
  const cuda::Memory messages_;
  const cuda::Memory written_{cuda::Memory::Place::kDevice, 0, 4 * kNumbers * sizeof(double)};
  const cuda::Memory beta_{cuda::Memory::Place::kDevice, 0, kChannels * sizeof(float)};
  cuda::Messages merge_{};
  Forward work_;
  Saved saved_;
};

/// A stream of this library, and one of a peer with work that takes a while.
class Rig {
 public:
  explicit Rig(bool small) : bytes_(small ? 1 << 12 : 64 << 20) {
    for (std::size_t i = 0; i < kPeers; ++i) peers_.emplace_back(0);
  }

  void time_all(Table* table) {
    table->time("launch of a kernel", [&] { on_gpu_.launch(&own_); });
    table->time("record of an event", [&] { peers_[0].record(&own_); });
    own_.synchronize();
    table->time("query of an event, reached", [&] { peers_[0].is_reached(); });
    for (const auto& [merge, place] : {std::pair(&on_gpu_, "the GPU"), {&on_host_, "the host"}}) {
      // From work to work, so that no launch is timed.
      peer_work();
      wait_for_peers();
      begin_.record(own_);
      merge->launch(&own_);
      add_end(table, std::string("merge of 8 messages in memory of ") + place, begin_);
    }
    peer_work();
    table->time("query of an event, not reached", [&] { peers_[0].is_reached(); });
    table->time("7 waits of a stream", [&] { wait_for_peers(); });
    on_gpu_.launch(&own_);
    add_end(table, "from the peers' end to the end of a merge: waits of the stream", end_of_peers_);
    peer_work();
    for (const cuda::Event& each : peers_) {
      while (!each.is_reached()) std::this_thread::yield();
    }
    on_gpu_.launch(&own_);
    add_end(table, "the same: waits of the host", end_of_peers_);
  }

 private:
  /// Work that lasts longer than the calls that follow, and the events at its end.
  void peer_work() {
    for (int i = 0; i < 4; ++i) peer_.copy(to_.data(), from_.data(), bytes_);
    for (cuda::Event& each : peers_) each.record(&peer_);
    end_of_peers_.record(peer_);
  }
  void wait_for_peers() {
    using Wait = int(CUstream_st * stream, CUevent_st * event, unsigned flags);
    static auto* const wait = of_driver<Wait>("cuStreamWaitEvent");
    for (std::size_t i = 0; i < kPeers; ++i) {
      cuda::check(wait(own_.handle(), end_of_peers_.handle(), 0), "cuStreamWaitEvent", 0);
    }
  }
  void add_end(Table* table, const std::string& name, const TimedEvent& begin) {
    end_.record(own_);
    own_.synchronize();
    peer_.synchronize();
    table->add(name, end_.microseconds_since(begin));
  }

  const std::size_t bytes_;
  const cuda::OnDevice on_device_{0};
  const Merge on_gpu_{cuda::Memory::Place::kDevice};
  const Merge on_host_{cuda::Memory::Place::kHost};
  cuda::Stream own_{0};
  cuda::Stream peer_{0};
  std::deque<cuda::Event> peers_;
  const TimedEvent end_of_peers_;
  const TimedEvent begin_;
  const TimedEvent end_;
  const cuda::Memory to_{cuda::Memory::Place::kDevice, 0, bytes_};
  const cuda::Memory from_{cuda::Memory::Place::kDevice, 0, bytes_};
};

/// How long it takes until the threads of 8 contexts run what is posted to them.
void time_wakes(Table* table) {
  for (const auto pause : {std::chrono::microseconds(0), std::chrono::microseconds(2000)}) {
    std::this_thread::sleep_for(pause);
    std::atomic<int> awake{0};
    table->time(pause.count() ? "8 threads wake" : "8 threads that do not sleep yet begin", [&] {
      for (int index = 0; index < 8; ++index) cuda::Gpu::of(index).post([&] { ++awake; });
      while (awake < 8) std::this_thread::yield();
    });
  }
}

void run(bool small) {
  require_gpu();
  cuda::Gpu::share(true);
  Table table;
  Rig rig(small);
  for (int i = 0; i < (small ? 2 : 200); ++i) {
    rig.time_all(&table);
    time_wakes(&table);
  }
  table.print();
}

}  // namespace
}  // namespace gluon_syncbn::tests

int main(int count, char** words) {
  try {
    gluon_syncbn::tests::run(count == 2 && words[1] == std::string("small"));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "time_calls: %s\n", error.what());
    return 1;
  }
}
