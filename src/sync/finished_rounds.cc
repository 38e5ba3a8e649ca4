#include "sync/finished_rounds.h"

namespace gluon_syncbn {

void FinishedRounds::add(const std::string& layer, const std::string& devices) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++rounds_[{layer, devices}];
}

std::string FinishedRounds::text() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string text;
  for (const auto& [met, number] : rounds_) {
    text += met.first + "\t" + std::to_string(number) + "\t" + met.second + "\n";
  }
  return text;
}

}  // namespace gluon_syncbn
