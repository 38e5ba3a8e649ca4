#include "sync/reduction.h"

#include <sstream>
#include <utility>

#include "common/enforce.h"
#include "common/report.h"

namespace gluon_syncbn {
namespace {

// Why a device may be missing, for users of MXNet in Python.
constexpr const char* kForwardCauses =
    "Usual causes: a device got no data this step (if a last batch has fewer images than there "
    "are devices, the DataLoader should have last_batch='discard'); num_devices is larger than "
    "the number of devices in use; a branch that calls the layer was taken on some devices only, "
    "or more often on one than on another; the step before was broken off between two devices "
    "(after that, call gluon_syncbn.drop_step()); ";
constexpr const char* kBackwardCauses =
    "Usual causes: backward was called for some devices only (give the losses of all "
    "devices to autograd.backward, or call backward() of each); the output of the layer "
    "does not reach the loss on a device; ";
constexpr const char* kCausesOfBoth =
    "the loop waits for one device (asnumpy, asscalar, wait_to_read) before it has called the "
    "others; an operation that failed before on a missing device, whose error nobody has read "
    "(mx.nd.waitall() reads all); an exception in the thread of a missing device, which GluonCV's "
    "DataParallelModel(sync=True) keeps to itself (call the network once before the threads); or "
    "devices reach several networks in different orders (reach them in one order; where that "
    "cannot be, MXNET_CPU_TEMP_COPY=16 or MXNET_GPU_TEMP_COPY=16, and for backward "
    "MXNET_EXEC_BULK_EXEC_TRAIN=0).";

const char* text_of(Direction direction) {
  return direction == Direction::kForward ? "forward" : "backward";
}

}  // namespace

Reduction::Reduction(std::shared_ptr<Membership> members, std::uint64_t number, Direction direction,
                     std::shared_ptr<RoundLink> processes)
    : members_(std::move(members)),
      number_(number),
      direction_(direction),
      name_(members_->layer() + " round " + std::to_string(number) + " " + text_of(direction)),
      processes_(std::move(processes)) {}

Reduction::~Reduction() { Watchdog::instance().unwatch(this); }

void Reduction::sum(DevicePass* pass) {
  ++coming_;
  pass->sum([this] { return coming_ >= members_->num_devices(); });
}

void Reduction::arrive(const Device& device, std::shared_ptr<DevicePass> pass) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!error_) {
    const bool is_awaited = !done_ && passes_.count(device) == 0;
    if (!is_awaited) {
      lock.unlock();
      fail(device.name() + " came twice");
    }
    GLUON_SYNCBN_ENFORCE(is_awaited, device.name() + " came to " + name_ + " twice");
    passes_[device] = pass;
    if (passes_.size() == 1 && (members_->num_devices() > 1 || processes_)) {
      if (const auto error = Watchdog::instance().watch(shared_from_this())) {
        lock.unlock();
        fail(*error);
        return;
      }
    }
    if (passes_.size() < members_->num_devices()) return;
  }
  if (error_) {
    const std::string error = *error_;
    lock.unlock();
    pass->fail(error);
  } else if (processes_) {
    exchange(lock, pass);
  } else {
    meet_and_finish(pass.get(), take_passes(lock), {});
  }
}

void Reduction::exchange(std::unique_lock<std::mutex>& lock,
                         const std::shared_ptr<DevicePass>& last) {
  sent_ = true;
  // They stay here, where the watchdog finds them.
  const DevicePasses passes = this->passes();
  lock.unlock();
  processes_->exchange(
      direction_, [passes, last](DevicePass::Then then) { last->gather(passes, std::move(then)); },
      [self = shared_from_this(), last](const std::vector<PartialStatistics>& processes,
                                        const std::string& error) {
        self->answered(processes, error, last);
      });
}

void Reduction::answered(const std::vector<PartialStatistics>& processes, const std::string& error,
                         const std::shared_ptr<DevicePass>& last) {
  if (!error.empty()) return fail(error);
  std::unique_lock<std::mutex> lock(mutex_);
  if (error_ || done_) return;
  meet_and_finish(last.get(), take_passes(lock), processes);
}

void Reduction::fail(const std::string& error) {
  end_with(name_ + ": " + error, [] {});
}

void Reduction::interrupt(const Interruption& interruption) {
  if (state().is_sent) return;
  end_with(name_ + ": " + interruption.reason, [&] {
    if (direction_ == Direction::kBackward) return;
    interruption.calls_may_come ? members_->failed_at_once(number_) : members_->timed_out();
  });
}

void Reduction::warn(Seconds waited, Seconds limit) {
  const State state = this->state();
  std::ostringstream message;
  message << "warning: " << name_ << " has waited " << waited.count() << " s for " << awaited(state)
          << " and fails at " << limit.count() << " s (gluon_syncbn.set_timeout). "
          << describe(state);
  report(message.str());
}

void Reduction::give_up(Seconds waited) {
  const State state = this->state();
  std::ostringstream message;
  message << name_ << " waited " << waited.count() << " s for " << awaited(state);
  if (!state.is_sent) {
    message << " (" << members_->option() << "=" << members_->num_devices() << ")";
  }
  message << ". " << describe(state);
  end_with(message.str(), [&] {
    if (direction_ == Direction::kForward && !state.is_sent) members_->timed_out();
  });
}

Reduction::State Reduction::state() {
  const std::lock_guard<std::mutex> lock(mutex_);
  State state;
  for (const auto& [device, _] : passes_) state.present.insert(device);
  state.is_sent = sent_;
  return state;
}

std::string Reduction::awaited(const State& state) const {
  return state.is_sent ? "the other processes"
                       : "all of " + std::to_string(members_->num_devices()) + " devices";
}

/// Who came and who did not, and why that may be.
std::string Reduction::describe(const State& state) const {
  if (state.is_sent) return processes_->describe(direction_);
  const bool is_forward = direction_ == Direction::kForward;
  std::string text = "Came: " + members_->present_text(state.present, is_forward) +
                     ". Missing: " + members_->missing_text(state.present, is_forward) + ". ";
  if (!is_forward) return text + kBackwardCauses + kCausesOfBoth;
  if (const auto inferring = members_->inferring_text(state.present); !inferring.empty()) {
    text += "Called in inference mode, without autograd.record() or train_mode: " + inferring +
            "; all devices should train, or none. ";
  }
  return text + members_->elsewhere() + kForwardCauses + kCausesOfBoth;
}

DevicePasses Reduction::passes() const {
  DevicePasses passes;
  for (const auto& [_, pass] : passes_) passes.push_back(pass);
  return passes;
}

DevicePasses Reduction::take_passes(std::unique_lock<std::mutex>& lock) {
  done_ = true;
  DevicePasses passes = this->passes();
  passes_.clear();
  lock.unlock();
  Watchdog::instance().unwatch(this);
  return passes;
}

template <class BeforeTelling>
void Reduction::end_with(const std::string& error, const BeforeTelling& before_telling) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (error_ || done_) return;
  error_ = error;
  const bool others_wait = processes_ && !sent_;
  const DevicePasses passes = take_passes(lock);
  before_telling();
  // Before the devices know, whose next round would otherwise overtake this message.
  if (others_wait) processes_->cancel(direction_, error);
  for (const auto& pass : passes) pass->fail(error);
}

}  // namespace gluon_syncbn
