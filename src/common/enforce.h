#pragma once

#include <string>

#include "common/error.h"

namespace gluon_syncbn {

/// Reports a broken invariant, which is a fault of this library and never of its user.
class InternalError : public Error {
 public:
  InternalError(const std::string& what, const char* file, int line)
      : Error("internal error of gluon_syncbn, please report it: " + what + " (" + file + ":" +
              std::to_string(line) + ")") {}
};

}  // namespace gluon_syncbn

/// Throws InternalError unless `condition` holds, in release builds too. Evaluates `what` only if
/// it throws.
#define GLUON_SYNCBN_ENFORCE(condition, what)                          \
  do {                                                                 \
    if (!(condition)) {                                                \
      throw ::gluon_syncbn::InternalError((what), __FILE__, __LINE__); \
    }                                                                  \
  } while (false)
