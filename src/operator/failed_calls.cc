#include "operator/failed_calls.h"

#include "common/error.h"
#include "common/per_process.h"

namespace gluon_syncbn::op {

FailedCalls& FailedCalls::instance() { return PerProcess<FailedCalls>::instance(); }

std::uint64_t FailedCalls::number() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return number_;
}

void FailedCalls::add(const std::string& error, std::uint64_t before) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (number_ == before) first_error_ = error;
  ++number_;
}

void FailedCalls::require_none_since(std::uint64_t before) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (number_ > before) throw Error("the step has failed already: " + first_error_);
}

}  // namespace gluon_syncbn::op
