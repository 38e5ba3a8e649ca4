#include "mxnet/update_order.h"

#include <algorithm>
#include <utility>

namespace gluon_syncbn {

std::optional<std::size_t> UpdateOrder::add_use() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (started_) return std::nullopt;
  passes_.push_back(0);
  return passes_.size() - 1;
}

bool UpdateOrder::is_due(const Position& position) const {
  const bool pass_is_over = next_.second >= passes_.size();
  return position <= next_ || (pass_is_over && position == Position(next_.first + 1, 0));
}

std::vector<UpdateOrder::StatisticsPtr> UpdateOrder::update(std::size_t use,
                                                            StatisticsPtr statistics) {
  std::vector<StatisticsPtr> due;
  const std::lock_guard<std::mutex> lock(mutex_);
  started_ = true;
  // A use that the host has skipped (after an error) is behind: what it brings now belongs to the
  // pass that the others are in.
  std::uint64_t& pass = passes_[use];
  pass = std::max(pass, use < next_.second ? next_.first + 1 : next_.first);
  early_[{pass++, use}] = std::move(statistics);
  // Nor must it hold up the others for ever: no more than one pass of updates is kept back.
  while (!early_.empty() && (is_due(early_.begin()->first) || early_.size() >= passes_.size())) {
    const auto first = early_.begin();
    if (first->second) due.push_back(std::move(first->second));
    next_ = {first->first.first, first->first.second + 1};
    early_.erase(first);
  }
  return due;
}

}  // namespace gluon_syncbn
