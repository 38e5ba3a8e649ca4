#include "common/other_threads.h"

#include <dirent.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>

namespace gluon_syncbn {
namespace {

constexpr std::chrono::seconds kPeriod{1};
// Threads count as idle if at most this share of the observations found a busy one.
constexpr double kBusyShare = 0.2;
constexpr const char* kTasks = "/proc/self/task";

bool is_busy(const std::string& task) {
  // Unlike std::istreambuf_iterator, operator<< does not throw if the thread ends before the read.
  std::ostringstream stat;
  stat << std::ifstream(std::string(kTasks) + "/" + task + "/stat").rdbuf();
  const std::string text = stat.str();
  // The text is "number (name) state ...", in which the name may contain any character. The text is
  // empty if the thread has ended.
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return false;
  const char state = text[name_end + 2];
  return state == 'R' || state == 'D';
}

bool any_is_busy() {
  const std::string own = std::to_string(syscall(SYS_gettid));
  const std::unique_ptr<DIR, int (*)(DIR*)> tasks(opendir(kTasks), &closedir);
  if (!tasks) return true;
  while (const dirent* task = readdir(tasks.get())) {
    if (task->d_name[0] != '.' && task->d_name != own && is_busy(task->d_name)) return true;
  }
  return false;
}

}  // namespace

bool OtherThreads::observe_idle() {
  ++observations_;
  if (any_is_busy()) ++busy_;
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
