#ifndef GLUON_SYNCBN_COMMON_ERROR_OF_H_
#define GLUON_SYNCBN_COMMON_ERROR_OF_H_

#include <exception>
#include <string>

namespace gluon_syncbn {

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

#endif  // GLUON_SYNCBN_COMMON_ERROR_OF_H_
