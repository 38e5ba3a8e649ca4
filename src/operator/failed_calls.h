#pragma once

#include <cstdint>
#include <mutex>
#include <string>

namespace gluon_syncbn::op {

/// Counts the calls of this process that fail.
///
/// MXNet skips all operations that depend on a failed one, but only until the program has read the
/// error. Later operations of the step compute with arrays that no operation has written. The
/// program has its error, but other processes have none: a step that has failed must not send them
/// such gradients.
class FailedCalls {
 public:
  static FailedCalls& instance();

  /// How many calls have failed.
  std::uint64_t number();
  /// Adds a failed call of a step. `before` is number() at the beginning of its forward pass.
  void add(const std::string& error, std::uint64_t before);
  /// Throws Error with the first error of the step, if a call has failed since number() was
  /// `before`.
  void require_none_since(std::uint64_t before);

 private:
  std::mutex mutex_;
  std::uint64_t number_ = 0;
  std::string first_error_;  // of the last step that failed
};

}  // namespace gluon_syncbn::op
