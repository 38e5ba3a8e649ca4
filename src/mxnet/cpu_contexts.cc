#include "mxnet/cpu_contexts.h"

#include <array>
#include <atomic>
#include <mutex>

#include "core/error.h"
#include "mxnet/c_api.h"
#include "mxnet/engine.h"

namespace gluon_syncbn::mxnet {
namespace {

std::atomic<CpuContextCheck> the_check{nullptr};
// What openblas_get_parallel() returns where OpenBLAS computes with OpenMP's threads.
constexpr int kOpenMP = 2;

}  // namespace

void set_cpu_context_check(CpuContextCheck check) { the_check = check; }

void require_safe_cpu_contexts(const std::string& layer, bool synchronized) {
  thread_local std::array<bool, 2> passed{};
  const CpuContextCheck check = the_check.load();
  if (!check || passed[synchronized]) return;
  std::array<char, 2048> message{};
  check(synchronized ? 1 : 0, message.data(), static_cast<int>(message.size()));
  if (message.front()) throw Error(layer + ": " + message.data());
  passed[synchronized] = true;
}

void use_one_thread_each(int contexts) {
  static std::mutex mutex;
  static int done = 0;
  if (!api().omp_set_num_threads || !api().openblas_get_parallel) return;
  if (api().openblas_get_parallel() != kOpenMP) return;
  const std::lock_guard<std::mutex> lock(mutex);
  for (; done < contexts; ++done) {
    post({"cpu", done}, "SyncBatchNormOneThread", [] { api().omp_set_num_threads(1); });
  }
}

}  // namespace gluon_syncbn::mxnet
