#pragma once

namespace gluon_syncbn {

/// Whether a kernel replaces the elements of its output array or adds to them (MXNet's grad_req).
enum class WriteMode { kAssign, kAdd };

}  // namespace gluon_syncbn
