#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "common/per_process.h"

namespace gluon_syncbn {

/// Counts the rounds in which all devices met, for programs that ask at their end.
class MetRounds {
 public:
  static MetRounds& instance() { return PerProcess<MetRounds>::instance(); }

  void begin() { is_counting_ = true; }
  bool is_counting() const { return is_counting_; }

  /// Layers with one name have their own keys.
  void add(const std::string& layer, const std::string& devices, const std::string& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++rounds_[{layer, devices, key}];
  }

  /// A line per layer and its devices: layer, number of rounds, devices, with tabs in between.
  std::string text() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::string text;
    for (const auto& [met, number] : rounds_) {
      text += std::get<0>(met) + "\t" + std::to_string(number) + "\t" + std::get<1>(met) + "\n";
    }
    return text;
  }

 private:
  std::atomic<bool> is_counting_{false};
  std::mutex mutex_;
  std::map<std::tuple<std::string, std::string, std::string>, std::uint64_t> rounds_;
};

}  // namespace gluon_syncbn
