#ifndef GLUON_SYNCBN_COMMON_REPORT_H_
#define GLUON_SYNCBN_COMMON_REPORT_H_

#include <iostream>
#include <string>

namespace gluon_syncbn {

/// Tells users what no call can tell them: the one place where this library writes by itself, to
/// the standard error. Python's logging would need the interpreter's lock, and the thread that
/// holds it may be waiting for the calling thread, as at a fork.
inline void report(const std::string& text) {
  // In one piece, because other threads may write too.
  std::cerr << "gluon_syncbn: " + text + "\n" << std::flush;
}

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_COMMON_REPORT_H_
