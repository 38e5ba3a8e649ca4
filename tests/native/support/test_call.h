#pragma once

#include <functional>
#include <string>

#include "backend/backend.h"

namespace gluon_syncbn::tests {

/// A call that does what the test sets.
struct TestCall : Call {
  std::function<void(const std::function<void()>& task)> on_post =
      [](const std::function<void()>& task) { task(); };
  std::function<void(const std::string& error)> on_complete;

  void post(std::function<void()> task) override { on_post(task); }
  void complete(const std::string& error) override { on_complete(error); }
};

}  // namespace gluon_syncbn::tests
