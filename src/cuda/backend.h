#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"

namespace gluon_syncbn::cuda {

/// The backend of the context gpu(index). Callers wait for a GPU only where two GPUs meet for the
/// first time; the context's thread waits for the rest. Throws Error, which begins with `layer`, if
/// there is no such GPU.
std::shared_ptr<Backend> backend_of(int index, const std::string& layer);

}  // namespace gluon_syncbn::cuda
