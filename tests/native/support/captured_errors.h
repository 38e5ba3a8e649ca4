#pragma once

#include <iostream>
#include <sstream>
#include <string>

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

}  // namespace gluon_syncbn::tests
