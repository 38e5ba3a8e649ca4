#include "common/other_threads.h"

#include <dirent.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>

namespace gluon_syncbn {
namespace {

constexpr std::chrono::seconds kPeriod{1};
constexpr const char* kTasks = "/proc/self/task";

/// Returns "" if the thread has ended.
std::string read(int thread, const char* file) {
  // Unlike std::istreambuf_iterator, operator<< does not throw if the thread ends before the read.
  std::ostringstream text;
  text << std::ifstream(std::string(kTasks) + "/" + std::to_string(thread) + "/" + file).rdbuf();
  return text.str();
}

/// Returns no thread if the system has no /proc.
std::vector<int> all_threads() {
  std::vector<int> threads;
  const std::unique_ptr<DIR, int (*)(DIR*)> tasks(opendir(kTasks), &closedir);
  if (!tasks) return threads;
  while (const dirent* task = readdir(tasks.get())) {
    if (task->d_name[0] != '.') threads.push_back(std::stoi(task->d_name));
  }
  return threads;
}

bool is_busy(int thread) {
  const std::string text = read(thread, "stat");
  // The text is "number (name) state ...", in which the name may contain any character.
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return false;
  const char state = text[name_end + 2];
  return state == 'R' || state == 'D';
}

/// Whether `call` ("number argument...", or "running") waits for another thread of the process.
bool waits_for_a_thread(const std::string& call) {
  std::istringstream text(call);
  long number = -1;
  unsigned long long futex = 0, operation = 0, value = 0, time_limit = 0;
  text >> number >> std::hex >> futex >> operation >> value >> time_limit;
  if (!text || number != SYS_futex || time_limit != 0 || !(operation & FUTEX_PRIVATE_FLAG)) {
    return false;
  }
  const auto command = operation & FUTEX_CMD_MASK;
  return command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET;
}

/// What each thread waits for, and how often it has slept; "" if it may go on.
std::map<int, std::string> look(const std::vector<int>& others) {
  std::map<int, std::string> threads;
  for (const int thread : all_threads()) {
    if (std::find(others.begin(), others.end(), thread) != others.end()) continue;
    const std::string call = read(thread, "syscall");
    const std::string status = read(thread, "status");
    const auto switches = status.find("voluntary_ctxt_switches");
    // A thread that reads a page of memory from a disk (D) waits for no thread yet.
    const bool sleeps = status.find("\nState:\tS") != std::string::npos;
    const bool waits = sleeps && waits_for_a_thread(call) && switches != std::string::npos;
    threads[thread] = waits ? call + status.substr(switches) : "";
  }
  return threads;
}

}  // namespace

int thread_id() { return static_cast<int>(syscall(SYS_gettid)); }

bool any_other_thread_is_busy() {
  const auto threads = all_threads();
  const int own = thread_id();
  return threads.empty() || std::any_of(threads.begin(), threads.end(), [&](int thread) {
           return thread != own && is_busy(thread);
         });
}

std::vector<int> threads_that_may_go_on(const std::vector<int>& others) {
  const auto before = look(others);
  const auto after = look(others);
  if (before.empty()) return {getpid()};
  std::vector<int> threads;
  for (const auto& [thread, doing] : after) {
    const auto found = before.find(thread);
    if (doing.empty() || found == before.end() || found->second != doing) threads.push_back(thread);
  }
  for (const auto& [thread, _] : before) {
    if (!after.count(thread)) threads.push_back(thread);
  }
  return threads;
}

bool OtherThreads::observe_idle() {
  ++observations_;
  if (any_other_thread_is_busy()) ++busy_;
  if (Clock::now() - since_ < kPeriod) return false;
  const bool are_idle = busy_ <= kBusyShare * observations_;
  forget();
  return are_idle;
}

void OtherThreads::forget() {
  since_ = Clock::now();
  observations_ = 0;
  busy_ = 0;
}

}  // namespace gluon_syncbn
