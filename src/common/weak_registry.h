#pragma once

#include <cstddef>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace gluon_syncbn {

/// Shares one object among all callers that give the same key, as long as one of them holds it.
template <class Key, class T>
class WeakRegistry {
 public:
  /// Calls make() for a new key, while the registry is locked.
  template <class Make>
  std::shared_ptr<T> find_or_make(const Key& key, const Make& make) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (objects_.size() > 2 * size_after_pruning_) prune();
    auto& known = objects_[key];
    auto object = known.lock();
    if (!object) known = object = make();
    return object;
  }

  /// The objects that still have a holder, in the order of their keys.
  std::vector<std::shared_ptr<T>> held() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::shared_ptr<T>> held;
    for (const auto& [_, known] : objects_) {
      if (auto object = known.lock()) held.push_back(std::move(object));
    }
    return held;
  }

 private:
  void prune() {
    for (auto at = objects_.begin(); at != objects_.end();) {
      at = at->second.expired() ? objects_.erase(at) : std::next(at);
    }
    size_after_pruning_ = objects_.size();
  }

  std::mutex mutex_;
  std::map<Key, std::weak_ptr<T>> objects_;
  std::size_t size_after_pruning_ = 0;
};

}  // namespace gluon_syncbn
