#ifndef GLUON_SYNCBN_TESTS_NATIVE_BRIDGE_DEVICE_H_
#define GLUON_SYNCBN_TESTS_NATIVE_BRIDGE_DEVICE_H_

#include "bridge/gpu_bridge.h"

namespace gluon_syncbn::bridge {

/// What other programs need to know of gpu(context). Throws Error.
GpuBridgeDevice device_of(int context);

}  // namespace gluon_syncbn::bridge

#endif  // GLUON_SYNCBN_TESTS_NATIVE_BRIDGE_DEVICE_H_
