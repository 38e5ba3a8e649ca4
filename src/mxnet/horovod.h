#pragma once

#include <string>

#include "mxnet/c_api.h"

namespace gluon_syncbn::mxnet {

/// Horovod's C function horovod_mxnet_allgather_async. It pushes an engine operation that resizes
/// the outputs, and returns 0 for success.
using HorovodAllgather = int (*)(NDArrayHandle* inputs, NDArrayHandle* outputs, const char* name,
                                 int priority, int process_set, int num_arrays);

/// The processes that meet in `allgather`.
struct HorovodSet {
  HorovodAllgather allgather = nullptr;
  int process_set = 0;
  int rank = 0;  ///< of this process in the set
  int size = 1;
  std::string ranks;  ///< of all processes of the set in the job, such as "0, 1", for messages
};

/// Lets operators name this process set. Throws Error.
void add_process_set(const HorovodSet& set);

/// Must be called before Horovod shuts down. Exchanges that start later fail with `kHasLeft`.
void leave_processes();
inline constexpr const char* kHasLeft = "Horovod has been shut down";

}  // namespace gluon_syncbn::mxnet
