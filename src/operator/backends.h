#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"
#include "common/device.h"

namespace gluon_syncbn::op {

/// The backend of a context. Throws Error naming `layer` if there is no such device.
std::shared_ptr<Backend> backend_of(const Device& device, const std::string& layer);

}  // namespace gluon_syncbn::op
