#pragma once

#include <string>

#include "mxnet/c_api.h"

namespace gluon_syncbn::horovod {

/// Horovod's C function horovod_mxnet_allgather_async. It pushes an engine operation that resizes
/// the outputs, and returns 0 for success.
using Allgather = int (*)(mxnet::NDArrayHandle* inputs, mxnet::NDArrayHandle* outputs,
                          const char* name, int priority, int process_set, int num_arrays);

/// The processes that meet in `allgather`.
struct ProcessSet {
  Allgather allgather = nullptr;
  int process_set = 0;
  int rank = 0;  ///< of this process in the set
  int size = 1;
  std::string ranks;  ///< of its processes in the job, such as "0, 1", for messages
};

/// Registers a process set. Operators refer to it by its number. Throws Error.
void add_process_set(const ProcessSet& set);

/// Must be called before Horovod shuts down. Later exchanges fail with kHasLeft, until a process
/// set is added again.
void leave_processes();
inline constexpr const char* kHasLeft = "Horovod has been shut down";

}  // namespace gluon_syncbn::horovod
