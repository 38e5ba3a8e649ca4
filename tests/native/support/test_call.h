#ifndef GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_TEST_CALL_H_
#define GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_TEST_CALL_H_

#include <cstdint>
#include <functional>
#include <string>

#include "norm/backend.h"

namespace gluon_syncbn::tests {

/// A call of which the test says what happens.
struct TestCall : Call {
  std::function<Update(const StatisticsPtr& batch, std::int64_t count)> on_update;
  std::function<void(const std::function<void()>& task)> on_post =
      [](const std::function<void()>& task) { task(); };
  std::function<void(const std::string& error)> on_complete;

  Update update(const StatisticsPtr& batch, std::int64_t count) override {
    return on_update(batch, count);
  }
  void post(std::function<void()> task) override { on_post(task); }
  void complete(const std::string& error) override { on_complete(error); }
};

}  // namespace gluon_syncbn::tests

#endif  // GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_TEST_CALL_H_
