#include "core/update_order.h"

namespace gluon_syncbn {

std::optional<std::size_t> UpdateOrder::add_use() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (started_) return std::nullopt;
  return num_uses_++;
}

bool UpdateOrder::is_due(const Position& position) const {
  const bool pass_is_over = next_.second >= num_uses_;
  return position <= next_ || (pass_is_over && position == Position(next_.first + 1, 0));
}

void UpdateOrder::update(std::size_t use, std::uint64_t pass, BatchStatistics statistics,
                         const Apply& apply) {
  const std::lock_guard<std::mutex> lock(mutex_);
  started_ = true;
  early_[{pass, use}] = std::move(statistics);
  // A use that the host skipped (after an error) must not hold up the others for ever: no more than
  // one pass of updates is kept back.
  while (!early_.empty() && (is_due(early_.begin()->first) || early_.size() >= num_uses_)) {
    const auto first = early_.begin();
    apply(first->second);
    if (first->first >= next_) next_ = {first->first.first, first->first.second + 1};
    early_.erase(first);
  }
}

}  // namespace gluon_syncbn
