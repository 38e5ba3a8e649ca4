#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"
#include "common/device.h"

namespace gluon_syncbn::op {

/// The backend of a context. Throws Error naming `layer` if this build has none.
std::shared_ptr<Backend> backend_of(const Device& device, const std::string& layer);

/// The CUDA version and architectures of this build, or how to build for GPUs.
std::string gpu_build();

/// The GPUs that this build finds.
std::string gpu_devices();

}  // namespace gluon_syncbn::op
