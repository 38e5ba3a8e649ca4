#ifndef GLUON_SYNCBN_MXNET_ADVICE_H_
#define GLUON_SYNCBN_MXNET_ADVICE_H_

#include "sync/advice.h"

namespace gluon_syncbn::mxnet {

/// For users of MXNet in Python.
const Advice& advice();

}  // namespace gluon_syncbn::mxnet

#endif  // GLUON_SYNCBN_MXNET_ADVICE_H_
