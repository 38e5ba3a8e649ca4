#ifndef GLUON_SYNCBN_CPU_BACKEND_H_
#define GLUON_SYNCBN_CPU_BACKEND_H_

#include <memory>

#include "backend/backend.h"

namespace gluon_syncbn {

/// The backend of all CPU contexts.
const std::shared_ptr<Backend>& cpu_backend();

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_CPU_BACKEND_H_
