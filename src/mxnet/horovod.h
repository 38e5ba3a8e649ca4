#ifndef GLUON_SYNCBN_MXNET_HOROVOD_H_
#define GLUON_SYNCBN_MXNET_HOROVOD_H_

#include <memory>
#include <string>

#include "distributed/process_group.h"
#include "mxnet/c_api.h"

namespace gluon_syncbn::mxnet {

/// Horovod's C function horovod_mxnet_allgather_async. It pushes an engine operation that resizes
/// the outputs, and returns 0 for success.
using HorovodAllgather = int (*)(NDArrayHandle* inputs, NDArrayHandle* outputs, const char* name,
                                 int priority, int process_set, int num_arrays);

/// Where `allgather` meets, and who does.
struct HorovodSet {
  HorovodAllgather allgather = nullptr;
  int process_set = 0;
  int rank = 0;  ///< of this process in the set
  int size = 1;
  std::string ranks;  ///< of all processes of the set in the job, such as "0, 1", for messages
};

/// From now on, operators may name this process set.
void add_process_set(const HorovodSet& set);

/// From now on, whoever starts an exchange gets the error `kHasLeft`: Horovod shuts down.
void leave_processes();
inline constexpr const char* kHasLeft = "Horovod has been shut down";

/// The group of a process set that was added. Throws Error where it was not.
std::shared_ptr<ProcessGroup> horovod_group(int process_set);

}  // namespace gluon_syncbn::mxnet

#endif  // GLUON_SYNCBN_MXNET_HOROVOD_H_
