#include "mxnet/repairs/resource_managers.h"

#include <atomic>
#include <exception>
#include <initializer_list>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "common/error.h"
#include "common/per_process.h"

namespace gluon_syncbn::mxnet {
namespace {

/// Mixes numbers into a seed. Devices with neighbouring seeds would share generators, because MXNet
/// seeds the 1024 generators of a context with consecutive numbers
/// (mxnet/include/mxnet/random_generator.h).
std::uint32_t mix(std::initializer_list<std::uint32_t> numbers) {
  std::uint32_t seed = 0;
  std::seed_seq(numbers).generate(&seed, &seed + 1);
  return seed;
}

std::uint32_t seed_for(int device_id, std::uint32_t seed) {
  return mix({seed, static_cast<std::uint32_t>(device_id)});
}

/// The managers of threads that have ended, and the number of threads without a seed of their own.
/// Both are per context. A forked child starts with neither.
class LeftManagers {
 public:
  ResourceManager* take(int device_id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& managers = left_[device_id];
    if (managers.empty()) return nullptr;
    ResourceManager* manager = managers.back();
    managers.pop_back();
    return manager;
  }

  void leave(int device_id, ResourceManager* manager) {
    const std::lock_guard<std::mutex> lock(mutex_);
    left_[device_id].push_back(manager);
  }

  /// Returns a different seed for each thread that has set none.
  std::uint32_t next_seed(int device_id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return mix({0, static_cast<std::uint32_t>(device_id), ++threads_[device_id], generation_});
  }

 private:
  static std::uint32_t next_generation() {
    static std::atomic<std::uint32_t> generations{0};
    return generations++;
  }

  const std::uint32_t generation_ = next_generation();
  std::mutex mutex_;
  std::map<int, std::vector<ResourceManager*>> left_;
  std::map<int, std::uint32_t> threads_;
};

/// Makes a manager on a thread of its own, because MXNet makes only one manager per thread.
ResourceManager* make_manager(const ResourceFunctions& mxnet) {
  ResourceManager* manager = nullptr;
  ErrorOfThread error;
  std::thread([&] {
    try {
      manager = mxnet.get();
    } catch (const std::exception& thrown) {
      error.emplace(thrown.what());
    }
  }).join();
  if (error) throw *error;
  return manager;
}

}  // namespace

ThreadManagers& ThreadManagers::instance() {
  thread_local ThreadManagers managers;
  return managers;
}

ThreadManagers::~ThreadManagers() {
  auto& left = PerProcess<LeftManagers>::instance();
  for (const auto& [device_id, manager] : managers_) left.leave(device_id, manager);
}

ResourceManager* ThreadManagers::of(int device_id, const ResourceFunctions& mxnet) {
  const auto found = managers_.find(device_id);
  if (found != managers_.end()) return found->second;
  auto& left = PerProcess<LeftManagers>::instance();
  ResourceManager* manager = left.take(device_id);
  if (!manager) manager = make_manager(mxnet);
  managers_[device_id] = manager;
  mxnet.seed(manager, seed_ ? seed_for(device_id, *seed_) : left.next_seed(device_id));
  return manager;
}

void ThreadManagers::seed(std::uint32_t seed, const ResourceFunctions& mxnet) {
  seed_ = seed;
  for (const auto& [device_id, manager] : managers_) {
    mxnet.seed(manager, seed_for(device_id, seed));
  }
}

}  // namespace gluon_syncbn::mxnet
