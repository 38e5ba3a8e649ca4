#include "counters.h"

#include <map>
#include <mutex>

namespace fake_cuda {
namespace {

struct Counters {
  std::mutex mutex;
  std::map<std::string, std::map<int, long>> numbers;
};

Counters& counters() {
  static Counters& all = *new Counters;
  return all;
}

}  // namespace

void count(const std::string& what, int device) {
  const std::lock_guard<std::mutex> lock(counters().mutex);
  ++counters().numbers[what][device];
}

long counted(const std::string& what, int device) {
  const std::lock_guard<std::mutex> lock(counters().mutex);
  long sum = 0;
  for (const auto& each : counters().numbers[what]) {
    if (device < 0 || each.first == device) sum += each.second;
  }
  return sum;
}

}  // namespace fake_cuda
