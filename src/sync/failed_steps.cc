#include "sync/failed_steps.h"

#include <atomic>
#include <utility>

#include "common/error.h"
#include "common/per_process.h"

namespace gluon_syncbn {

namespace {

// Outside the class, because a forked child gets new FailedSteps but keeps the barriers.
std::atomic<std::uint64_t> the_dropped{0};

}  // namespace

std::uint64_t FailedSteps::dropped() { return the_dropped; }

FailedSteps& FailedSteps::instance() { return PerProcess<FailedSteps>::instance(); }

std::uint64_t FailedSteps::passes() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return passes_;
}

void FailedSteps::add(const std::string& error, std::uint64_t before) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (passes_ == before) first_error_ = error;
  ++passes_;
}

void FailedSteps::require_none_since(std::uint64_t before) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (passes_ > before) throw Error("the step has failed already: " + first_error_);
}

void FailedSteps::keep(std::shared_ptr<void> barrier) {
  const std::lock_guard<std::mutex> lock(mutex_);
  kept_.insert(std::move(barrier));
}

void FailedSteps::release(const std::shared_ptr<void>& barrier) {
  const std::lock_guard<std::mutex> lock(mutex_);
  kept_.erase(barrier);  // the caller has another owner
}

void FailedSteps::drop() {
  std::set<std::shared_ptr<void>> kept;  // goes when the mutex is free again
  const std::lock_guard<std::mutex> lock(mutex_);
  ++the_dropped;
  kept.swap(kept_);
}

}  // namespace gluon_syncbn
