#pragma once

#include "backend/backend.h"

namespace gluon_syncbn::cpu {

/// The backend of all CPU contexts.
const Backend& backend();

}  // namespace gluon_syncbn::cpu
