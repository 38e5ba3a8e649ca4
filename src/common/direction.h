#pragma once

namespace gluon_syncbn {

enum class Direction { kForward, kBackward };

}  // namespace gluon_syncbn
