#pragma once

#include <mutex>

#include "common/per_process.h"

namespace gluon_syncbn {

/// A backend holds this lock while it moves the running statistics of all devices of a process, or
/// queues their moves. If several uses share running statistics, all devices update them in one
/// order.
inline std::unique_lock<std::mutex> lock_running_statistics() {
  struct OfAllLayers {
    std::mutex mutex;
  };
  return std::unique_lock<std::mutex>(PerProcess<OfAllLayers>::instance().mutex);
}

}  // namespace gluon_syncbn
