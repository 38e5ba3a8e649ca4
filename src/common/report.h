#pragma once

#include <iostream>
#include <string>

namespace gluon_syncbn {

/// Prints a message that no call can return to the user. Nothing else in this library prints.
///
/// Python's logging would need the interpreter's lock. The thread that holds it may be waiting for
/// the calling thread, as at a fork.
inline void report(const std::string& text) {
  // One write, so that the text of another thread cannot come in between.
  std::cerr << "gluon_syncbn: " + text + "\n" << std::flush;
}

}  // namespace gluon_syncbn
