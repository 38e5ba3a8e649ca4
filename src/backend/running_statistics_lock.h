#ifndef GLUON_SYNCBN_BACKEND_RUNNING_STATISTICS_LOCK_H_
#define GLUON_SYNCBN_BACKEND_RUNNING_STATISTICS_LOCK_H_

#include <mutex>

namespace gluon_syncbn {

/// A backend holds this lock while it moves the running statistics of all devices of a process, or
/// queues their moves. So all devices apply the updates of uses that share arrays in one order.
std::unique_lock<std::mutex> lock_running_statistics();

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_BACKEND_RUNNING_STATISTICS_LOCK_H_
