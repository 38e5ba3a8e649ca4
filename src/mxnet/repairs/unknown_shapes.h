// Fault: a custom operator cannot leave a shape unknown until other operators know more. MXNet
// makes
//   a shape of every answer, and a shape made in this way has at least 0 dimensions, which means a
//   scalar (InferShape in mxnet/src/operator/custom/custom.cc).
// Met by: infer_shape_partial(), and symbols whose data gets its shape from an operator after the
//   layer.
// Without this file: an error, "the shape of data is not known".
// Delete it when MXNet accepts -1 dimensions there.

#pragma once

#include "common/error.h"

namespace gluon_syncbn::mxnet {

/// Thrown by the callback that infers shapes if it knows none of them yet.
class UnknownShapes : public Error {
 public:
  using Error::Error;
};

/// Lets MXNet go on with other operators after UnknownShapes, and call again when these know more.
/// If this MXNet does not have its functions where 1.9.1 and 2.0.0b1 have them, UnknownShapes stays
/// an error.
void accept_unknown_shapes();

}  // namespace gluon_syncbn::mxnet
