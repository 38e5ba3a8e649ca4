#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "distributed/process_group.h"

namespace gluon_syncbn::tests {

/// Connects the simulated processes of a test, which all live in the process of the test.
class Wire {
 public:
  explicit Wire(int size) : size_(size) {}

  int size() const { return size_; }

  void put(int process, const std::string& name, ProcessGroup::Words message,
           ProcessGroup::OnGathered then) {
    std::map<int, Letter> complete;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      auto& waiting = waiting_[name];
      if (!waiting.try_emplace(process, Letter{std::move(message), std::move(then)}).second) {
        throw Error("the name " + name + " is in use twice");
      }
      names_.push_back(name);
      if (waiting.size() < static_cast<std::size_t>(size_)) return;
      complete.swap(waiting);
      if (holds_) {
        held_.push_back(std::move(complete));
        held_changed_.notify_all();
        return;
      }
    }
    deliver(complete);
  }

  /// Delivers nothing until release().
  void hold() {
    const std::lock_guard<std::mutex> lock(mutex_);
    holds_ = true;
  }
  void wait_for_held() {
    std::unique_lock<std::mutex> lock(mutex_);
    held_changed_.wait_for(lock, std::chrono::seconds(60), [this] { return !held_.empty(); });
  }
  void release() {
    std::vector<std::map<int, Letter>> held;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      holds_ = false;
      held.swap(held_);
    }
    for (const auto& letters : held) deliver(letters);
  }

  /// Waiting messages refer to their groups, and the groups refer to this wire.
  void forget() {
    std::map<std::string, std::map<int, Letter>> waiting;
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting.swap(waiting_);
  }

  std::vector<std::string> names() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return names_;
  }

 private:
  struct Letter {
    ProcessGroup::Words message;
    ProcessGroup::OnGathered then;
  };

  static void deliver(const std::map<int, Letter>& letters) {
    ProcessGroup::Gathered gathered;
    for (const auto& [_, letter] : letters) {
      gathered.words.insert(gathered.words.end(), letter.message.begin(), letter.message.end());
    }
    for (const auto& [_, letter] : letters) letter.then(gathered);
  }

  const int size_;
  mutable std::mutex mutex_;
  std::condition_variable held_changed_;
  bool holds_ = false;
  std::vector<std::map<int, Letter>> held_;
  std::map<std::string, std::map<int, Letter>> waiting_;
  std::vector<std::string> names_;
};

class WiredGroup : public ProcessGroup {
 public:
  WiredGroup(std::shared_ptr<Wire> wire, int process) : wire_(std::move(wire)), process_(process) {}
  void gather(const std::string& name, Words message, OnGathered then) override {
    wire_->put(process_, name, std::move(message), std::move(then));
  }
  int id() const override { return 0; }
  int size() const override { return wire_->size(); }
  std::string describe() const override { return "process " + std::to_string(process_); }
  std::string missing(const std::string& name) const override {
    return "Missing: who has no " + name + ".";
  }

 private:
  const std::shared_ptr<Wire> wire_;
  const int process_;
};

}  // namespace gluon_syncbn::tests
