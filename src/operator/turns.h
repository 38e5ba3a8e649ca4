#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>

namespace gluon_syncbn::op {

/// Finds out whether values take turns: A, B, A, B.
template <class Value>
class Turns {
 public:
  /// A value that has not come for `window` calls counts as new: memory that was freed is used
  /// again.
  explicit Turns(std::size_t window) : window_(window) {}

  /// Returns whether `value` comes back, after values before it have done so.
  bool add(const Value& value) {
    const bool comes_back = !recent_.empty() && !(recent_.back() == value) &&
                            std::find(recent_.begin(), recent_.end(), value) != recent_.end();
    recent_.push_back(value);
    if (recent_.size() > window_) recent_.pop_front();
    if (comes_back) ++returns_;
    return comes_back && returns_ >= kMostReturns;
  }

 private:
  static constexpr int kMostReturns = 3;

  const std::size_t window_;
  std::deque<Value> recent_;
  int returns_ = 0;
};

}  // namespace gluon_syncbn::op
