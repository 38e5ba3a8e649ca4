#include "mxnet/one_thread_each.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <mutex>
#include <set>

#include "mxnet/c_api.h"
#include "mxnet/engine.h"

namespace gluon_syncbn::mxnet {
namespace {

// What openblas_get_parallel() returns if OpenBLAS computes with OpenMP's threads.
constexpr int kOpenMP = 2;

// Of MXNet's ThreadedEngine, which all contexts share. Its other engine has some for each context.
constexpr int kPooledWorkers = 16;

// A worker that is alone for so long has no colleague: the setting was changed behind MXNet's
// start.
constexpr std::chrono::seconds kPatience(5);

int positive_setting(const char* name) {
  const char* value = std::getenv(name);
  return value ? std::max(1, std::atoi(value)) : 1;
}

/// Keeps the workers that come to it until so many have, so that each takes part once.
class Gathering {
 public:
  explicit Gathering(int workers) : missing_(workers) {}

  void join() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (--missing_ == 0) all_here_.notify_all();
    all_here_.wait_for(lock, kPatience, [this] { return missing_ <= 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  int missing_;
};

void set_workers_of(int device_id, int number) {
  const auto gathering = std::make_shared<Gathering>(number);
  for (int i = 0; i < number; ++i) {
    post({"cpu", device_id}, "SyncBatchNormOneThread", [gathering] {
      api().omp_set_num_threads(1);
      gathering->join();
    });
  }
}

/// The contexts that were set. MXNet's handlers of fork end its workers and start others, in the
/// parent as well as in the child.
class Contexts {
 public:
  static Contexts& instance() {
    // Never destroyed: a process may fork while it ends.
    static Contexts& contexts = *new Contexts();
    // MXNet has registered its handlers before, so that in parent and child its engine runs again
    // when these are called. The lock is held across the fork, lest the child finds it taken.
    static const int registered =
        pthread_atfork([] { contexts.mutex_.lock(); }, [] { contexts.renew(); },
                       [] {
                         contexts.is_child_ = true;
                         contexts.renew();
                       });
    static_cast<void>(registered);
    return contexts;
  }

  void add(const std::vector<int>& device_ids) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const int id : device_ids) {
      if (device_ids_.count(id) > 0) continue;
      if (is_engine("ThreadedEngine")) {
        if (device_ids_.empty()) set_workers_of(id, kPooledWorkers);
      } else {
        set_workers_of(id, positive_setting(is_child_ ? "MXNET_MP_WORKER_NTHREADS"
                                                      : "MXNET_CPU_WORKER_NTHREADS"));
      }
      device_ids_.insert(id);
    }
  }

 private:
  void renew() {
    const std::vector<int> ids(device_ids_.begin(), device_ids_.end());
    device_ids_.clear();
    mutex_.unlock();
    try {
      add(ids);
    } catch (const std::exception& error) {
      std::cerr << "gluon_syncbn: warning: after a fork, CPU contexts could not be set to one "
                << "thread each, and convolutions may wait for ever: " << error.what() << std::endl;
    }
  }

  std::mutex mutex_;
  std::set<int> device_ids_;
  bool is_child_ = false;
};

}  // namespace

void use_one_thread_each(const std::vector<int>& device_ids) {
  if (!api().omp_set_num_threads || !api().openblas_get_parallel) return;
  if (api().openblas_get_parallel() != kOpenMP) return;
  if (is_engine("NaiveEngine")) return;  // which has no workers
  Contexts::instance().add(device_ids);
}

}  // namespace gluon_syncbn::mxnet
