#include "common/processors.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <thread>

namespace gluon_syncbn {
namespace {

/// Returns 0 unless the file begins with a number.
double number_in(const std::string& file, double* second = nullptr) {
  std::ifstream text(file);
  double number = 0;
  text >> number;
  if (second) text >> *second;
  return text ? number : 0;
}

/// Processor time per time.
double limit_in(const std::string& group) {
  double period = 0;
  double quota = number_in(group + "/cpu.max", &period);  // of version 2; "max 100000": no limit
  if (quota <= 0) {
    quota = number_in(group + "/cpu/cpu.cfs_quota_us");  // of version 1; -1: no limit
    period = number_in(group + "/cpu/cpu.cfs_period_us");
  }
  return quota > 0 && period > 0 ? quota / period : std::numeric_limits<double>::infinity();
}

}  // namespace

int cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

double processors(const std::string& group) { return std::min<double>(cores(), limit_in(group)); }

}  // namespace gluon_syncbn
