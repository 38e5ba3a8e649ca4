#ifndef GLUON_SYNCBN_COMMON_WRITE_MODE_H_
#define GLUON_SYNCBN_COMMON_WRITE_MODE_H_

namespace gluon_syncbn {

/// Whether a kernel replaces the elements of its output array or adds to them (MXNet's grad_req).
enum class WriteMode { kAssign, kAdd };

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_COMMON_WRITE_MODE_H_
