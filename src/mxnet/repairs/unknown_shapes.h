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
