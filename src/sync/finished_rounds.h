#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "common/per_process.h"

namespace gluon_syncbn {

/// Counts the rounds in which all devices met, for programs that ask at their end.
class FinishedRounds {
 public:
  static FinishedRounds& instance() { return PerProcess<FinishedRounds>::instance(); }

  /// Begins to count. Before that, rounds make no texts and take no lock.
  void start() { counts_ = true; }
  bool is_counting() const { return counts_; }

  void add(const std::string& layer, const std::string& devices);

  /// A line per layer and its devices: layer, number of rounds, devices, with tabs in between.
  std::string text();

 private:
  std::atomic<bool> counts_{false};
  std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, std::uint64_t> rounds_;
};

}  // namespace gluon_syncbn
