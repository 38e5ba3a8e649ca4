#ifndef GLUON_SYNCBN_COMMON_DIRECTION_H_
#define GLUON_SYNCBN_COMMON_DIRECTION_H_

namespace gluon_syncbn {

enum class Direction { kForward, kBackward };

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_COMMON_DIRECTION_H_
