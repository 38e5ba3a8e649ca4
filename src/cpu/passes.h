#ifndef GLUON_SYNCBN_CPU_PASSES_H_
#define GLUON_SYNCBN_CPU_PASSES_H_

#include <memory>

#include "norm/backend.h"
#include "norm/device_pass.h"

namespace gluon_syncbn {

/// Passes over arrays in the memory of the host. What comes out does not depend on who computes it,
/// nor on how much of it was begun before all devices were there.
std::shared_ptr<DevicePass> pass_on_host(Backend::Forward pass);
std::shared_ptr<DevicePass> pass_on_host(Backend::Backward pass);

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_CPU_PASSES_H_
