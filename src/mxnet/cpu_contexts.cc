#include "mxnet/cpu_contexts.h"

#include <array>
#include <atomic>

#include "common/error.h"

namespace gluon_syncbn::mxnet {
namespace {

std::atomic<CpuContextCheck> the_check{nullptr};

}  // namespace

void set_cpu_context_check(CpuContextCheck check) { the_check = check; }

void require_safe_cpu_contexts(const std::string& layer, bool several) {
  static std::array<std::atomic<bool>, 2> passed{};
  const CpuContextCheck check = the_check.load();
  if (!check || passed[several]) return;
  std::array<char, 2048> message{};
  check(several ? 1 : 0, message.data(), static_cast<int>(message.size()));
  if (message.front()) throw Error(layer + ": " + message.data());
  passed[several] = true;
}

}  // namespace gluon_syncbn::mxnet
