#include "horovod/process_sets.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "distributed/process_rounds.h"
#include "mxnet/dtype.h"
#include "mxnet/engine.h"
#include "mxnet/ndarray.h"

namespace gluon_syncbn::horovod {
namespace {

std::atomic<bool> has_left{false};

using mxnet::NDArray;
using mxnet::NDArrayHandle;

NDArray make_array(std::size_t size) {
  return NDArray::on_cpu(static_cast<std::int64_t>(size), mxnet::kInt64);
}

class HorovodGroup : public ProcessGroup {
 public:
  explicit HorovodGroup(ProcessSet set) : set_(std::move(set)) {}

  void gather(const std::string& name, Words message, OnGathered then) override {
    if (has_left) return then({{}, kHasLeft});
    try {
      // The task of push_after() owns both arrays, because Horovod uses their handles until then.
      const auto capacity = message.size() * static_cast<std::size_t>(set_.size);
      const auto exchange = std::make_shared<Exchange>(
          Exchange{make_array(message.size()), make_array(capacity), then});
      std::copy(message.begin(), message.end(), exchange->input.data<std::int64_t>());
      NDArrayHandle input = exchange->input.handle();
      NDArrayHandle output = exchange->output.handle();
      mxnet::check(
          set_.allgather(&input, &output, full_name(name).c_str(), kPriority, set_.process_set, 1),
          "horovod_mxnet_allgather_async");
      mxnet::push_after(output, "SyncBatchNormAcrossProcesses",
                        [exchange] { exchange->then(exchange->result()); });
    } catch (const std::exception& error) {
      then({{}, error.what()});
    }
  }

  int id() const override { return set_.process_set; }
  int size() const override { return set_.size; }
  std::string describe(const std::string& name) const override {
    return "process " + std::to_string(set_.rank) + " of " + std::to_string(set_.size) +
           " (Horovod's ranks " + set_.ranks +
           "). Missing: at least one of the other processes. Each process that waits warns on its "
           "standard error after 10 s (a tenth of a shorter timeout); a missing process does not, "
           "or names another layer. Over MPI, process 0 prints Horovod's list of missing ranks "
           "for " +
           full_name(name) + " after HOROVOD_STALL_CHECK_TIME_SECONDS (60 by default).";
  }

 private:
  // Statistics go before Horovod's gradients, because every layer waits for them.
  static constexpr int kPriority = 1 << 20;

  static std::string full_name(const std::string& name) { return "SyncBatchNorm." + name; }

  struct Exchange {
    NDArray input;
    NDArray output;
    OnGathered then;

    Gathered result() const {
      // All writers of the output have ended, so NDArrayWaitToRead returns at once. If Horovod's
      // operation has failed, it returns that error, and the engine forgets the error.
      if (mxnet::api().NDArrayWaitToRead(output.handle()) != 0)
        return {{}, mxnet::api().GetLastError()};
      try {
        const auto shape = output.shape();
        const auto* words = output.data<const std::int64_t>();
        return {Words(words, words + (shape.empty() ? 0 : shape.front())), {}};
      } catch (const std::exception& error) {
        return {{}, error.what()};
      }
    }
  };

  const ProcessSet set_;
};

}  // namespace

void add_process_set(const ProcessSet& set) {
  has_left = false;
  add_process_group(std::make_shared<HorovodGroup>(set));
}

void leave_processes() { has_left = true; }

}  // namespace gluon_syncbn::horovod
