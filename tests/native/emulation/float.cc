#include "emulation/launch.h"

namespace gluon_syncbn::cuda {
GLUON_SYNCBN_CUDA_DATA_BODIES(GLUON_SYNCBN_LAUNCH, float)
}
