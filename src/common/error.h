#ifndef GLUON_SYNCBN_COMMON_ERROR_H_
#define GLUON_SYNCBN_COMMON_ERROR_H_

#include <exception>
#include <stdexcept>
#include <string>

namespace gluon_syncbn {

/// Every failure this library reports. Hosts catch it as std::exception; its layout is that of
/// std::runtime_error, which hosts compiled by another compiler rely on.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

/// Returns nullptr, or what went wrong in `task`, good until this thread's next call: how C
/// functions hand errors to Python.
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

#endif  // GLUON_SYNCBN_COMMON_ERROR_H_
