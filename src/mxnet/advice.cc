#include "mxnet/advice.h"

#include <string>

namespace gluon_syncbn::mxnet {
namespace {

Advice make_advice() {
  const std::string waiting =
      "the loop waits for one device (asnumpy, asscalar, wait_to_read) before it has called the "
      "others; an operation that failed before on a missing device, whose error nobody has read "
      "(mx.nd.waitall() reads all); an exception in the thread of a missing device, which "
      "GluonCV's "
      "DataParallelModel(sync=True) keeps to itself (call the network once before the threads); or "
      "devices reach several networks in different orders (reach them in one order; where that "
      "cannot be, MXNET_CPU_TEMP_COPY=16 or MXNET_GPU_TEMP_COPY=16, and for backward "
      "MXNET_EXEC_BULK_EXEC_TRAIN=0).";
  Advice advice;
  advice.timeout = " (gluon_syncbn.set_timeout)";
  advice.more_devices =
      " Set num_devices to the number of devices in use; after moving a hybridized network to "
      "other contexts call hybridize() again.";
  advice.inference = ", without autograd.record() or train_mode";
  advice.forward_causes =
      "Usual causes: a device got no data this step (if a last batch has fewer images than there "
      "are devices, the DataLoader should have last_batch='discard'); num_devices is larger than "
      "the number of devices in use; a branch that calls the layer was taken on some devices only, "
      "or more often on one than on another; the step before was broken off between two devices "
      "(after that, call gluon_syncbn.drop_step()); " +
      waiting;
  advice.backward_causes =
      "Usual causes: backward was called for some devices only (give the losses of all "
      "devices to autograd.backward, or call backward() of each); the output of the layer "
      "does not reach the loss on a device; " +
      waiting;
  return advice;
}

}  // namespace

const Advice& advice() {
  static const Advice& advice = *new Advice(make_advice());
  return advice;
}

}  // namespace gluon_syncbn::mxnet
