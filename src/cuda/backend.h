#pragma once

#include <string>

#include "backend/backend.h"

namespace gluon_syncbn::cuda {

/// The backend of the context gpu(index), whose thread waits for GPUs. Callers wait for none.
/// Throws Error, which begins with `layer`, if there is no such GPU.
const Backend& backend_of(int index, const std::string& layer);

}  // namespace gluon_syncbn::cuda
