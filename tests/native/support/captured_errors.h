#pragma once

#include <iostream>
#include <sstream>
#include <string>

#include "common/error.h"

namespace gluon_syncbn::tests {

/// Captures the text that is written to std::cerr while this object lives.
class CapturedErrors {
 public:
  CapturedErrors() : before_(std::cerr.rdbuf(stream_.rdbuf())) {}
  ~CapturedErrors() { std::cerr.rdbuf(before_); }
  CapturedErrors(const CapturedErrors&) = delete;
  CapturedErrors& operator=(const CapturedErrors&) = delete;

  std::string text() const { return stream_.str(); }

 private:
  std::ostringstream stream_;
  std::streambuf* const before_;
};

/// The message of the error that `task` throws; empty if it throws none.
template <class Task>
std::string error_of(const Task& task) {
  try {
    task();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace gluon_syncbn::tests
