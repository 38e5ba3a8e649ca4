#include "norm/device_pass.h"

#include <exception>
#include <mutex>

#include "common/per_process.h"

namespace gluon_syncbn {
namespace {

void let_meet(const DevicePasses& passes) {
  const std::lock_guard<std::mutex> lock(PerProcess<std::mutex>::instance());
  for (const auto& pass : passes) pass->met();
}

}  // namespace

void finish_all(DevicePass* last, const DevicePasses& passes,
                const std::vector<PartialStatistics>& processes) {
  try {
    let_meet(passes);
  } catch (const std::exception& error) {
    for (const auto& pass : passes) pass->fail(error.what());
    return;
  }
  last->finish(passes, processes);
}

}  // namespace gluon_syncbn
