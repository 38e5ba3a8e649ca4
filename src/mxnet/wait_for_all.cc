#include "mxnet/wait_for_all.h"

#include <optional>

#include "mxnet/c_api.h"
#include "mxnet/repairs/error_queue.h"

namespace gluon_syncbn::mxnet {

std::string wait_for_all(const Interruption& interruption) {
  Watchdog::instance().interrupt_when_idle(interruption);
  const bool is_clean = api().NDArrayWaitAll() == 0;
  std::string error = is_clean ? "" : api().GetLastError();
  // The attempts after the last failure are operations too, which may leave errors to be read.
  ErrorQueue::instance().wait_until_idle();
  if (api().NDArrayWaitAll() != 0 && error.empty()) error = api().GetLastError();
  Watchdog::instance().interrupt_when_idle(std::nullopt);
  return error;
}

}  // namespace gluon_syncbn::mxnet
