#pragma once

#include <cstdint>
#include <functional>

namespace gluon_syncbn::cpu {

/// Calls task(i) for all i in [0, number), in rising order, on the calling thread and on helping
/// threads. Helpers come only if there are many tasks and a core is free. The result of task(i)
/// must not depend on its thread. After an error of a task no other one starts, and the error is
/// thrown here. A forked child has no helpers.
///
/// Every caller computes. Helpers come only while all calls together have less than num_threads()
/// threads; if more devices begin to compute, helpers leave.
void parallel_for(std::int64_t number, const std::function<void(std::int64_t)>& task);

/// OMP_NUM_THREADS if it is set, but at most the number of cores that this process may use.
int num_threads();

/// For tests. A number below 1 means 1.
void set_num_threads(int number);

}  // namespace gluon_syncbn::cpu
