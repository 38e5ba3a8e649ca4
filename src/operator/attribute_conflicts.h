#pragma once

#include "operator/attributes.h"

namespace gluon_syncbn::op {

/// Throws Error if attributes exclude each other.
void check_conflicts(const Attributes& attributes);

}  // namespace gluon_syncbn::op
