#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>

namespace gluon_syncbn {

/// Counts the training passes of this process that fail, and the steps that were dropped.
///
/// MXNet skips all operations that depend on a failed one, but only until the program has read the
/// error. Later operations of the step compute with arrays that no operation has written. The
/// program has its error, but other processes have none: a step that has failed must not send them
/// such gradients.
class FailedSteps {
 public:
  static FailedSteps& instance();

  /// How many passes have failed.
  std::uint64_t passes();
  /// Adds a failed pass. `before` is passes() at the beginning of its forward pass.
  void add(const std::string& error, std::uint64_t before);
  /// Throws Error with the first error of the step, if a pass has failed since passes() was
  /// `before`.
  void require_none_since(std::uint64_t before);

  /// Keeps a barrier that has to repeat an error, until release() or drop(). Operators may go
  /// before.
  void keep(std::shared_ptr<void> barrier);
  void release(const std::shared_ptr<void>& barrier);

  /// The next step repeats no failure until now.
  void drop();
  static std::uint64_t dropped();

 private:
  std::mutex mutex_;
  std::uint64_t passes_ = 0;
  std::string first_error_;  // of the last step that failed
  std::set<std::shared_ptr<void>> kept_;
};

}  // namespace gluon_syncbn
