#include "emulation/launch.h"

namespace gluon_syncbn::cuda {
GLUON_SYNCBN_CUDA_CHANNEL_BODIES(GLUON_SYNCBN_LAUNCH)
}
