#include "mxnet/wait_for_all.h"

#include <chrono>

#include "common/program.h"
#include "mxnet/c_api.h"
#include "mxnet/repairs/error_queue.h"

namespace gluon_syncbn::mxnet {
namespace {

constexpr std::chrono::minutes kLongestWait{1};

}  // namespace

std::string wait_for_all(const Ending& ending) {
  const Watchdog::EndsWhenIdle ends_when_idle(ending);
  const bool is_clean = api().NDArrayWaitAll() == 0;
  std::string error = is_clean ? "" : api().GetLastError();
  // The attempts after the last failure are operations too, which may leave errors to be read.
  ErrorQueue::instance().wait_until_idle();
  if (api().NDArrayWaitAll() != 0 && error.empty()) error = api().GetLastError();
  return error;
}

bool wait_for_passes(const Ending& ending) {
  const Watchdog::EndsWhenIdle ends_when_idle(ending);
  const auto give_up = Watchdog::Clock::now() + kLongestWait;
  while (!other_threads_are_idle() || Watchdog::instance().has_waits()) {
    if (Watchdog::Clock::now() > give_up) return false;
  }
  ErrorQueue::instance().wait_until_idle();
  return true;
}

}  // namespace gluon_syncbn::mxnet
