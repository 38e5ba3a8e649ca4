#include "sync/missing_devices.h"

#include "sync/sync_group.h"

namespace gluon_syncbn {
namespace {

// Why a device may be missing, in the words of MXNet's users in Python.
constexpr const char* kForwardCauses =
    "Usual causes: a device got no data this step (if a last batch has fewer images than there "
    "are devices, the DataLoader should have last_batch='discard'); num_devices is larger than "
    "the number of devices in use; a branch that calls the layer was taken on some devices only, "
    "or more often on one than on another; the step before was broken off between two devices "
    "(after that, call gluon_syncbn.drop_step()); ";
constexpr const char* kBackwardCauses =
    "Usual causes: backward was called for some devices only (give the losses of all "
    "devices to autograd.backward, or call backward() of each); the output of the layer "
    "does not reach the loss on a device; ";
constexpr const char* kCausesOfBoth =
    "the loop waits for one device (asnumpy, asscalar, wait_to_read) before it has called the "
    "others; an operation that failed before on a missing device, whose error the program has not "
    "read (mx.nd.waitall() reads all); an exception in the thread of a missing device, which "
    "GluonCV's "
    "DataParallelModel(sync=True) keeps to itself (call the network once before the threads); or "
    "devices reach several networks in different orders (reach them in one order; if that "
    "is impossible, MXNET_CPU_TEMP_COPY=16 or MXNET_GPU_TEMP_COPY=16, and for backward "
    "MXNET_EXEC_BULK_EXEC_TRAIN=0).";

}  // namespace

std::string describe_missing(const SyncGroup& group, const std::set<Device>& present,
                             Direction direction) {
  const bool is_forward = direction == Direction::kForward;
  std::string text = "Came: " + group.present_text(present, is_forward) +
                     ". Missing: " + group.missing_text(present, is_forward) + ". ";
  if (!is_forward) return text + kBackwardCauses + kCausesOfBoth;
  if (const auto inferring = group.inferring_text(present); !inferring.empty()) {
    text += "Called in inference mode, without autograd.record() or train_mode: " + inferring +
            "; all devices should train, or none. ";
  }
  return text + group.elsewhere_text() + kForwardCauses + kCausesOfBoth;
}

}  // namespace gluon_syncbn
