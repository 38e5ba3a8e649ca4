#include "mxnet/horovod.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "common/error.h"
#include "common/per_process.h"
#include "distributed/stall_inspector.h"
#include "mxnet/dtype.h"
#include "mxnet/engine.h"
#include "mxnet/ndarray.h"

namespace gluon_syncbn::mxnet {
namespace {

std::atomic<bool> has_left{false};

NDArray make_array(std::size_t size) {
  return NDArray::on_cpu(static_cast<std::int64_t>(size), kInt64);
}

class HorovodGroup : public ProcessGroup {
 public:
  explicit HorovodGroup(HorovodSet set) : set_(std::move(set)) {}

  void gather(const std::string& name, Words message, Then then) override {
    if (has_left) return then({{}, kHasLeft});
    try {
      // Horovod refers to the very handle of its output, and so the continuation keeps that.
      const auto capacity = message.size() * static_cast<std::size_t>(set_.size);
      const auto call =
          std::make_shared<Call>(Call{make_array(message.size()), make_array(capacity), then});
      std::copy(message.begin(), message.end(), call->input.data<std::int64_t>());
      NDArrayHandle input = call->input.handle();
      NDArrayHandle output = call->output.handle();
      const std::string full_name = "SyncBatchNorm." + name;
      check(set_.allgather(&input, &output, full_name.c_str(), kPriority, set_.process_set, 1),
            "horovod_mxnet_allgather_async");
      push_after(output, "SyncBatchNormAcrossProcesses", [call] { call->then(call->result()); });
    } catch (const std::exception& error) {
      then({{}, error.what()});
    }
  }

  bool is(const HorovodSet& set) const {
    return std::tie(set.rank, set.size, set.ranks) == std::tie(set_.rank, set_.size, set_.ranks);
  }

  int id() const override { return set_.process_set; }
  int size() const override { return set_.size; }
  int number() const override { return set_.rank; }
  std::string describe() const override {
    return "process " + std::to_string(set_.rank) + " of " + std::to_string(set_.size) +
           " (Horovod's ranks " + set_.ranks + ")";
  }
  std::string missing(const std::string&) const override {
    return "Missing: at least one of the other processes. The launcher names one that has ended; "
           "Horovod over MPI names the missing ranks on the standard error of rank 0 after "
           "HOROVOD_STALL_CHECK_TIME_SECONDS.";
  }

 private:
  // Gradients may wait for us, never we for gradients.
  static constexpr int kPriority = 1 << 20;

  struct Call {
    NDArray input;
    NDArray output;
    Then then;

    Gathered result() const {
      // All that writes the output is over: this returns at once, with the error of Horovod's
      // operation where there is one, which the engine then forgets.
      if (api().NDArrayWaitToRead(output.handle()) != 0) return {{}, api().GetLastError()};
      try {
        const auto shape = output.shape();
        const auto* words = output.data<const std::int64_t>();
        return {Words(words, words + (shape.empty() ? 0 : shape.front())), {}};
      } catch (const std::exception& error) {
        return {{}, error.what()};
      }
    }
  };

  const HorovodSet set_;
};

class Groups {
 public:
  static Groups& instance() { return PerProcess<Groups>::instance(); }

  void add(const HorovodSet& set) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& [group, inspector] = groups_[set.process_set];
    if (!group || !group->is(set)) {
      // Horovod may have been initialized again with other processes.
      if (inspector) inspector->end();
      group = std::make_shared<HorovodGroup>(set);
      inspector = std::make_shared<StallInspector>(group);
    }
    inspector->begin();
  }

  std::shared_ptr<ProcessGroup> find(int process_set) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = groups_.find(process_set);
    if (found == groups_.end()) return nullptr;
    return found->second.second;
  }

 private:
  std::mutex mutex_;
  std::map<int, std::pair<std::shared_ptr<HorovodGroup>, std::shared_ptr<StallInspector>>> groups_;
};

}  // namespace

void add_process_set(const HorovodSet& set) {
  has_left = false;
  Groups::instance().add(set);
}

void leave_processes() { has_left = true; }

std::shared_ptr<ProcessGroup> horovod_group(int process_set) {
  auto group = Groups::instance().find(process_set);
  if (!group) {
    throw Error("process set " + std::to_string(process_set) +
                " is not known in this process: call gluon_syncbn.init() after hvd.init()");
  }
  return group;
}

}  // namespace gluon_syncbn::mxnet
