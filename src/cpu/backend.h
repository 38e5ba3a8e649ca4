#pragma once

#include <memory>

#include "backend/backend.h"

namespace gluon_syncbn {

/// The backend of all CPU contexts.
const std::shared_ptr<Backend>& cpu_backend();

}  // namespace gluon_syncbn
