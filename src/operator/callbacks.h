#pragma once

#include "mxnet/c_api.h"

namespace gluon_syncbn::op {

constexpr const char* kOpType = "SyncBatchNorm";

/// Registers the operator with MXNet under kOpType.
void register_operator();

}  // namespace gluon_syncbn::op
