#include "sync/met_rounds.h"

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>

#include "common/per_process.h"

namespace gluon_syncbn {
namespace {

struct Counts {
  std::atomic<bool> are_wanted{false};
  std::mutex mutex;
  std::map<std::tuple<std::string, std::string, std::string>, std::uint64_t> rounds;
};

}  // namespace

void count_rounds() { PerProcess<Counts>::instance().are_wanted = true; }

void note_met_round(const std::string& layer, const std::string& key,
                    const std::map<Device, PassPtr>& passes) {
  auto& counts = PerProcess<Counts>::instance();
  if (!counts.are_wanted) return;
  const std::lock_guard<std::mutex> lock(counts.mutex);
  ++counts.rounds[{layer, device_list(passes), key}];
}

std::string counted_rounds() {
  auto& counts = PerProcess<Counts>::instance();
  const std::lock_guard<std::mutex> lock(counts.mutex);
  std::string text;
  for (const auto& [met, number] : counts.rounds) {
    const auto& layer = std::get<0>(met);
    const auto& devices = std::get<1>(met);
    text += layer + "\t" + std::to_string(number) + "\t" + devices + "\n";
  }
  return text;
}

}  // namespace gluon_syncbn
