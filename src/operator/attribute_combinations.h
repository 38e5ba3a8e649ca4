#pragma once

#include "operator/attributes.h"

namespace gluon_syncbn::op {

/// Throws Error if attributes exclude each other.
void check_combinations(const Attributes& attributes);

}  // namespace gluon_syncbn::op
