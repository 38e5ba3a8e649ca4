#pragma once

#include <memory>

#include "backend/backend.h"

namespace gluon_syncbn::cpu {

/// The backend of all CPU contexts.
const std::shared_ptr<Backend>& backend();

}  // namespace gluon_syncbn::cpu
