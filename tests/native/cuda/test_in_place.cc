// The check that the input of a layer in place is recoverable from its output.

#include <doctest/doctest.h>

#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "common/error.h"
#include "common/real.h"
#include "cpu/channel_math.h"
#include "cuda/backend.h"
#include "cuda/device_array.h"
#include "cuda/gpu.h"
#include "cuda/needs_gpu.h"
#include "cuda/shard.h"
#include "norm/activation.h"
#include "support/arrays.h"
#include "support/ranks.h"
#include "support/test_call.h"
#include "sync/meeting.h"

namespace gluon_syncbn::tests {
namespace {

/// What the check on a GPU says of parameters in its memory, or "".
template <class T>
std::string error_on_gpu(const Activation& activation, const std::vector<Real<T>>& gamma,
                         const std::vector<Real<T>>& beta) {
  const ShareGpus share;
  auto& gpu = cuda::Gpu::of(0);
  const DeviceArray<Real<T>> on_device_gamma(gpu.stream(), gamma);
  const DeviceArray<Real<T>> on_device_beta(gpu.stream(), beta);
  const auto layer = cuda::backend_of(0, "layer");
  const DeviceArray<T> zeros(gpu.stream(), std::vector<T>(6 * beta.size()));
  Backend::Backward work;
  work.data = {Type<T>::kDType, {2, static_cast<std::int64_t>(beta.size()), 3}};
  work.activation = activation;
  work.inplace = true;
  work.dy = work.y = zeros.data();
  work.gamma = gamma.empty() ? nullptr : on_device_gamma.data();
  work.beta = on_device_beta.data();
  Backend::Forward forward;
  forward.data = work.data;
  forward.beta = on_device_beta.data();
  forward.running.mean = forward.running.variance = on_device_beta.data();
  forward.saved = &work.saved;
  Finishes finishes;
  const auto call = std::make_shared<TestCall>();
  call->on_complete = finishes.one();
  layer->inference(forward, call);
  REQUIRE(finishes.wait(1).front().empty());
  finish_alone(layer->backward(work, call));
  return finishes.wait(2).back();
}

/// The same by that of CPU contexts, which throws it.
template <class T>
std::string error_on_cpu(const Activation& activation, const std::vector<Real<T>>& gamma,
                         const std::vector<Real<T>>& beta) {
  Backend::Backward pass;
  pass.data = {Type<T>::kDType, {2, static_cast<std::int64_t>(beta.size()), 3}};
  pass.activation = activation;
  pass.gamma = gamma.empty() ? nullptr : gamma.data();
  pass.beta = beta.data();
  try {
    cpu::require_invertible(pass);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE_TEMPLATE("cuda in place: the check says what that of CPU contexts says", T, float, double,
                   Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  using R = Real<T>;
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double gammas[] = {0,    1e-300, 1e-36, 1e-20, -1e-9, 1e-6,     3e-5, -2e-4,
                           3e-4, 0.02,   -0.03, 1,     -1,    infinity, nan};
  int errors = 0;
  int tried = 0;
  for (const double gamma : gammas) {
    for (const double beta : {0.0, 1.0, -1.0, 5000.0, infinity, nan}) {
      for (const Activation& activation : {Activation{}, Activation{ActType::kLeaky, 1e-3}}) {
        const std::vector<R> all_gamma{R(1), R(gamma), R(1)}, all_beta{R(0.5), R(beta), R(-2)};
        const auto found = error_on_gpu<T>(activation, all_gamma, all_beta);
        CHECK(found == error_on_cpu<T>(activation, all_gamma, all_beta));
        if (!found.empty()) CHECK(contains(found, "channel 1 has gamma "));
        errors += !found.empty();
        ++tried;
      }
    }
  }
  CHECK(errors > tried / 5);
  CHECK(errors < tried * 4 / 5);
  // A gamma that is fixed is 1.
  for (const double beta : {0.5, 1e9, 1e20}) {
    const std::vector<R> all_beta{R(0), R(0), R(beta)};
    const auto found = error_on_gpu<T>({}, {}, all_beta);
    CHECK(found == error_on_cpu<T>({}, {}, all_beta));
    CHECK(found.empty() == (beta < 1 || (beta < 1e8 && std::is_same_v<T, double>)));
  }
}

TEST_CASE("cuda in place: of channels that are not invertible the first is named") {
  GLUON_SYNCBN_NEEDS_GPU();
  std::vector<float> gamma(700, 1), beta(700, 0);
  for (const std::size_t c : {699, 500, 271, 262, 650}) gamma[c] = 0;
  for (const auto order : kOtherOrders) {
    const InOrder in_order(order);
    CHECK(contains(error_on_gpu<float>({}, gamma, beta), "channel 262 has"));
  }
}

}  // namespace gluon_syncbn::tests
