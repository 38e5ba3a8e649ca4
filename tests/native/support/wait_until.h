#pragma once

#include <chrono>
#include <thread>

namespace gluon_syncbn::tests {

/// Waits until `condition` holds, and returns whether it does. Only a defect lets it take a minute.
template <class Condition>
bool wait_until(const Condition& condition) {
  for (int i = 0; i < 60000 && !condition(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return condition();
}

}  // namespace gluon_syncbn::tests
