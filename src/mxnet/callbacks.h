#ifndef GLUON_SYNCBN_MXNET_CALLBACKS_H_
#define GLUON_SYNCBN_MXNET_CALLBACKS_H_

#include "mxnet/c_api.h"

namespace gluon_syncbn::mxnet {

constexpr const char* kOpType = "SyncBatchNorm";

/// Registers the operator with MXNet under kOpType.
void register_operator();

}  // namespace gluon_syncbn::mxnet

#endif  // GLUON_SYNCBN_MXNET_CALLBACKS_H_
