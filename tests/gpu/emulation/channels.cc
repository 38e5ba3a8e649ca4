#include "emulation/emulate.h"

namespace gluon_syncbn::cuda {

static const bool emulates = [] {
  GLUON_SYNCBN_CHANNEL_BODIES(GLUON_SYNCBN_EMULATE)
  return true;
}();

}  // namespace gluon_syncbn::cuda
