#include "emulation/emulate.h"

namespace gluon_syncbn::cuda {

static const bool emulates = [] {
  GLUON_SYNCBN_DATA_BODIES(GLUON_SYNCBN_EMULATE, float)
  return true;
}();

}  // namespace gluon_syncbn::cuda
