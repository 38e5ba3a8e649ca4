#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace gluon_syncbn {

/// A group of processes that exchange messages. This process is a member.
class ProcessGroup {
 public:
  using Words = std::vector<std::int64_t>;

  /// The messages of all processes after each other, in the order of processes; or an error.
  struct Gathered {
    Words words;
    std::string error;
  };
  using OnGathered = std::function<void(const Gathered&)>;

  virtual ~ProcessGroup() = default;

  /// Calls `then` exactly once, now or later, from any thread. Messages with the same `name` meet;
  /// a process has one message of a name under way at a time. Messages may differ in length. Does
  /// not throw.
  virtual void gather(const std::string& name, Words message, OnGathered then) = 0;

  /// Different for groups that have processes in common.
  virtual int id() const = 0;
  virtual int size() const = 0;
  /// "process 0 of 4 (ranks 0, 1, 2, 3)", for a message.
  virtual std::string describe() const = 0;
  /// How to find out which processes have not come to the exchange under `name`, in whole
  /// sentences.
  virtual std::string missing(const std::string& name) const = 0;
};

}  // namespace gluon_syncbn
