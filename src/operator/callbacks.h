#pragma once

#include "mxnet/c_api.h"

namespace gluon_syncbn::op {

constexpr const char* kOpType = "SyncBatchNorm";

using FirstUse = void (*)();

/// Registers the operator with MXNet under kOpType. Calls `first_use`, if there is one, with the
/// first node.
void register_operator(FirstUse first_use);

}  // namespace gluon_syncbn::op
