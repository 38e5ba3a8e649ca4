#include "norm/backend.h"

#include <exception>

#include "common/per_process.h"

namespace gluon_syncbn {
namespace {

void meet(const DevicePasses& passes) {
  const std::lock_guard<std::mutex> lock(PerProcess<std::mutex>::instance());
  for (const auto& pass : passes) pass->call().meet();
}

}  // namespace

void meet_and_finish(DevicePass* last, const DevicePasses& passes,
                     const std::vector<PartialStatistics>& processes) {
  try {
    meet(passes);
  } catch (const std::exception& error) {
    for (const auto& pass : passes) pass->fail(error.what());
    return;
  }
  last->finish(passes, processes);
}

void finish_alone(const std::shared_ptr<DevicePass>& pass) {
  try {
    pass->sum([] { return true; });
  } catch (const std::exception& error) {
    return pass->fail(error.what());
  }
  meet_and_finish(pass.get(), {pass}, {});
}

}  // namespace gluon_syncbn
