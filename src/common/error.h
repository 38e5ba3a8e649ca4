#pragma once

#include <exception>
#include <optional>
#include <stdexcept>
#include <string>

namespace gluon_syncbn {

/// The exception of every failure that this library reports. It adds no members to
/// std::runtime_error, so that code from another compiler can catch it as a std::exception.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

/// An error of another thread, if there is one. It is no std::exception_ptr: newer headers count
/// its owners with functions that the libstdc++ required by MXNet's wheels lacks.
using ErrorOfThread = std::optional<Error>;

/// Reports a broken invariant, which is a fault of this library and never of its user.
class InternalError : public Error {
 public:
  InternalError(const std::string& what, const char* file, int line)
      : Error("internal error of gluon_syncbn, please report it: " + what + " (" + file + ":" +
              std::to_string(line) + ")") {}
};

/// Runs `task` and returns nullptr, or the message of the exception that it threw. C functions hand
/// errors to Python in this way. The message stays valid until this thread calls error_of() again.
template <class Task>
const char* error_of(const Task& task) {
  thread_local std::string error;
  try {
    task();
    return nullptr;
  } catch (const std::exception& caught) {
    error = caught.what();
    return error.c_str();
  }
}

}  // namespace gluon_syncbn

/// Throws InternalError unless `condition` holds, in release builds too. Evaluates `what` only if
/// it throws.
#define GLUON_SYNCBN_ENFORCE(condition, what)                          \
  do {                                                                 \
    if (!(condition)) {                                                \
      throw ::gluon_syncbn::InternalError((what), __FILE__, __LINE__); \
    }                                                                  \
  } while (false)
