#include "backend/running_statistics_lock.h"

#include "common/per_process.h"

namespace gluon_syncbn {
namespace {

struct OfAllLayers {
  std::mutex mutex;
};

}  // namespace

std::unique_lock<std::mutex> lock_running_statistics() {
  return std::unique_lock<std::mutex>(PerProcess<OfAllLayers>::instance().mutex);
}

}  // namespace gluon_syncbn
