#include "cpu/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "common/error.h"
#include "common/processors.h"
#include "cpu/tuning.h"

namespace gluon_syncbn::cpu {
namespace {

int default_threads() {
  const char* setting = std::getenv("OMP_NUM_THREADS");
  const int wanted = setting ? std::atoi(setting) : 0;
  return wanted > 0 ? std::min(wanted, cores()) : cores();
}

/// The threads that help. They start with the first job that they can help with. The team is never
/// destroyed, so its threads may still be waiting when the process ends.
class Team {
 public:
  static Team& instance() {
    static Team* const team = [] {
      // A forked child has the memory of the team but none of its threads, and the mutex may be
      // locked. So each caller there does all the work itself.
      pthread_atfork(nullptr, nullptr, [] { forked_ = true; });
      return new Team;
    }();
    return *team;
  }

  int limit() const { return limit_.load(std::memory_order_relaxed); }
  void set_limit(int number) { limit_.store(std::max(1, number), std::memory_order_relaxed); }

  void run(std::int64_t number, const std::function<void(std::int64_t)>& task) {
    const Caller caller(this);
    const bool all_cores_have_callers = callers_ >= limit();
    if (number < kLeastParts || forked_ || all_cores_have_callers) {
      for (std::int64_t i = 0; i < number; ++i) task(i);
      return;
    }
    Job job(number, task);
    offer(&job);
    try {
      for (std::int64_t i = 0; (i = job.take()) < number;) task(i);
    } catch (...) {
      job.abandon();
      withdraw(&job);
      throw;
    }
    withdraw(&job);
    if (job.error) throw *job.error;
  }

 private:
  struct Job {
    const std::int64_t number;
    const std::function<void(std::int64_t)>& task;
    std::atomic<std::int64_t> next{0};
    int helpers = 0;      // guarded by the mutex of the team
    ErrorOfThread error;  // of a helper; guarded by the same mutex

    Job(std::int64_t number_in, const std::function<void(std::int64_t)>& task_in)
        : number(number_in), task(task_in) {}
    std::int64_t take() { return next.fetch_add(1, std::memory_order_relaxed); }
    void abandon() { next.store(number, std::memory_order_relaxed); }
    bool is_taken() const { return next.load(std::memory_order_relaxed) >= number; }
  };

  /// Counts the threads that compute a job of their own, and each may use a core.
  class Caller {
   public:
    explicit Caller(Team* team) : team_(team) { ++team_->callers_; }
    ~Caller() {
      --team_->callers_;
      team_->replace_caller();
    }
    Caller(const Caller&) = delete;
    Caller& operator=(const Caller&) = delete;

   private:
    Team* team_;
  };

  Team() : limit_(default_threads()) {}

  void offer(Job* job) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int wanted = static_cast<int>(std::min<std::int64_t>(job->number - 1, limit() - 1));
    while (static_cast<int>(threads_.size()) < wanted && add_thread()) avoided_core_ = -1;
    keep_helpers_off_this_core();
    jobs_.push_back(job);
    ++offered_;
    for (int i = 0; i < wanted; ++i) wake_.notify_one();
  }

  /// Waits for the helpers that still compute parts of the job.
  void withdraw(Job* job) {
    std::unique_lock<std::mutex> lock(mutex_);
    jobs_.erase(std::find(jobs_.begin(), jobs_.end(), job));
    --offered_;
    left_.wait(lock, [&] { return job->helpers == 0; });
  }

  /// Keeps the helpers off the core of the calling thread, which computes on. The system tends to
  /// wake a thread on the core of the thread that wakes it, where the two would take turns. Without
  /// this, passes took 1.4 times as long beside other work.
  void keep_helpers_off_this_core() {
    const int here = sched_getcpu();
    if (here < 0 || here == avoided_core_) return;
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return;
    CPU_CLR(here, &cores);
    if (CPU_COUNT(&cores) == 0) return;
    for (const pthread_t thread : threads_) {
      pthread_setaffinity_np(thread, sizeof(cores), &cores);
    }
    avoided_core_ = here;
  }

  bool add_thread() {
    try {
      std::thread thread([this] { help(); });
      threads_.push_back(thread.native_handle());
      thread.detach();
      return true;
    } catch (const std::system_error&) {
      return false;  // The caller works without this thread.
    }
  }

  /// Returns a job with parts left, if a core is free to help with it.
  Job* find_job() {
    if (callers_ + helping_ >= limit()) return nullptr;
    for (Job* job : jobs_) {
      if (!job->is_taken()) return job;
    }
    return nullptr;
  }

  /// Wakes a helper for the core of a caller that ends. Most calls are small and end while no job
  /// is offered, so these take no lock. A job that is offered later finds the core free.
  void replace_caller() {
    if (offered_ == 0 || forked_) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (find_job()) wake_.notify_one();
  }

  /// Computes parts until the job has none left, or another device needs the core.
  void help_with(Job* job, std::unique_lock<std::mutex>* lock) {
    while (callers_ + helping_ <= limit()) {
      const std::int64_t i = job->take();
      if (i >= job->number) return;
      lock->unlock();
      ErrorOfThread error;
      try {
        job->task(i);
      } catch (const std::exception& caught) {
        error.emplace(caught.what());
      }
      lock->lock();
      if (error) {
        job->error = error;
        job->abandon();
        return;
      }
    }
  }

  [[noreturn]] void help() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      Job* job = nullptr;
      wake_.wait(lock, [&] { return (job = find_job()) != nullptr; });
      ++job->helpers;
      ++helping_;
      help_with(job, &lock);
      --helping_;
      if (--job->helpers == 0) left_.notify_all();
    }
  }

  static inline std::atomic<bool> forked_{false};

  std::atomic<int> limit_;
  std::atomic<int> callers_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable left_;
  std::vector<Job*> jobs_;
  std::atomic<int> offered_{0};  // the size of jobs_
  std::vector<pthread_t> threads_;
  int avoided_core_ = -1;  // no helper runs on this core; -1: on any
  int helping_ = 0;        // threads that help now
};

}  // namespace

void parallel_for(std::int64_t number, const std::function<void(std::int64_t)>& task) {
  Team::instance().run(number, task);
}

int num_threads() { return Team::instance().limit(); }

void set_num_threads(int number) { Team::instance().set_limit(number); }

}  // namespace gluon_syncbn::cpu
