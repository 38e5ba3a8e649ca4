#ifndef GLUON_SYNCBN_CUDA_BACKEND_H_
#define GLUON_SYNCBN_CUDA_BACKEND_H_

#include <memory>
#include <string>

#include "backend/backend.h"

namespace gluon_syncbn::cuda {

/// What computes for the context gpu(index). Nothing in it waits for a GPU, but where two meet for
/// the first time: work is put on the stream of the context, behind events where it reads what
/// another GPU writes. Throws Error with `layer` in front where there is no such GPU.
std::shared_ptr<Backend> backend_of(int index, const std::string& layer);

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_BACKEND_H_
