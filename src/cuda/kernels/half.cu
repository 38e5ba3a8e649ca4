#include "cuda/kernels/kernel.cuh"

namespace gluon_syncbn::cuda {
GLUON_SYNCBN_CUDA_DATA_BODIES(GLUON_SYNCBN_CUDA_INSTANTIATE, Half)
}
