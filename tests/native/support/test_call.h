#pragma once

#include <functional>
#include <string>

#include "backend/backend.h"

namespace gluon_syncbn::tests {

/// A call that does what the test sets.
struct TestCall : Call {
  std::function<void(const std::string& error)> on_complete;

  void complete(const std::string& error) override { on_complete(error); }
};

}  // namespace gluon_syncbn::tests
