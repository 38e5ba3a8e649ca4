#ifndef GLUON_SYNCBN_OPERATOR_BACKENDS_H_
#define GLUON_SYNCBN_OPERATOR_BACKENDS_H_

#include <memory>
#include <string>

#include "backend/backend.h"
#include "common/device.h"

namespace gluon_syncbn::op {

/// What computes for a context. Throws Error naming `layer` where this build has nothing for it.
std::shared_ptr<Backend> backend_of(const Device& device, const std::string& layer);

/// The CUDA version and architectures that this build is for, or how to build for some.
std::string gpu_build();

/// The GPUs of the machine, as far as this build can tell.
std::string gpu_devices();

}  // namespace gluon_syncbn::op

#endif  // GLUON_SYNCBN_OPERATOR_BACKENDS_H_
