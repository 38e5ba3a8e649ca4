#ifndef GLUON_SYNCBN_CPU_THREAD_POOL_H_
#define GLUON_SYNCBN_CPU_THREAD_POOL_H_

#include <cstdint>
#include <functional>

namespace gluon_syncbn {

/// Calls task(i) for all i in [0, number) on the calling thread, helped by threads of this process
/// for which a core is free, if there is enough to do. They start in rising order. The task must
/// not throw, and give the same results whoever runs it. In a child of fork nobody helps.
///
/// All calls share num_threads() threads, their callers included: where as many devices compute at
/// once, none gets help, and help that was given earlier leaves.
void parallel_for(std::int64_t number, const std::function<void(std::int64_t)>& task);

/// Calls task(0), task(1), ... up to number on the calling thread alone, until one returns false;
/// none where no other core would be left to those who are not here yet.
void for_ahead(std::int64_t number, const std::function<bool(std::int64_t)>& task);

/// OMP_NUM_THREADS where it is set, but never more than the cores that this process may use.
int num_threads();

/// At least 1. For tests.
void set_num_threads(int number);

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_CPU_THREAD_POOL_H_
