// What a layer computes of given statistics and sums, with all activations, by a shortcut and in
// place.

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "cuda/device_array.h"
#include "cuda/kernels/phases.h"
#include "cuda/needs_gpu.h"
#include "cuda/phase_arrays.h"
#include "norm/activation.h"
#include "support/activations.h"
#include "support/arrays.h"
#include "support/layer_case.h"
#include "support/values.h"

namespace gluon_syncbn::tests {
namespace {

std::vector<double> message_of(std::vector<double> first, const std::vector<double>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// What the kernels compute for a case on one device.
template <class T>
class GpuPhases {
 public:
  using R = Real<T>;

  GpuPhases(cuda::Stream* stream, const LayerCase<T>& given, std::uint32_t number = 1)
      : given_(given),
        offset_(offset_of(number)),
        // Some arrays lie alike within 16 bytes, others do not.
        other_offset_(number % 5 == 1 ? 1 : offset_),
        stream_(stream),
        workspace_(stream),
        forward_(stream, message_of(given.means, given.m2), given.kCount, given.gamma, given.beta),
        normalizations_(stream, std::vector<cuda::StoredAffine<R>>(given.channels())),
        gamma_gradient_(stream, given.gamma),
        beta_gradient_(stream, given.gamma),
        merged_sums_(stream, std::vector<double>(2 * given.channels())),
        inv_std_(stream, given.inv_stds()),
        mean_(stream, given.means),
        message_(stream, message_of(given.sum_dz, given.sum_dz_centered)) {
    forward_.source.eps = given.kEps;
    if (given.fix_gamma) forward_.source.gamma = nullptr;
    std::vector<T> y(given.x.elements.size());
    normalize(WriteMode::kAssign, false, &y);  // leaves what By::kInput needs
  }

  void normalize(WriteMode write, bool adds_shortcut, std::vector<T>* y) {
    const DeviceArray<T> input(stream_, given_.x.elements, offset_), output(stream_, *y, offset_);
    const DeviceArray<T> shortcut(stream_, given_.y.elements, other_offset_);
    cuda::normalize(
        input.data(), given_.layout, forward_.source, write, output.data(), &workspace_, stream_,
        {given_.activation, adds_shortcut ? shortcut.data() : nullptr, normalizations_.data()});
    *y = output.download();
  }
  std::vector<double> gradient_sums() {
    const DeviceArray<double> found(stream_, std::vector<double>(2 * given_.channels(), -1));
    on_gpu([&](const T* dy, const T* x, const cuda::Gate<T>& gate) {
      cuda::gradient_sums(dy, x, given_.layout, mean_.data(), &workspace_, found.data(), stream_,
                          gate);
    });
    return found.download();
  }
  void input_gradient(WriteMode write, std::vector<T>* dx) {
    const DeviceArray<T> array(stream_, *dx, offset_);
    gradients(write, array.data());
    *dx = array.download();
  }
  void shortcut_gradient(WriteMode write, std::vector<T>* dz) {
    const DeviceArray<T> array(stream_, *dz, other_offset_);
    gradients(WriteMode::kAssign, nullptr, write, array.data());
    *dz = array.download();
  }
  /// Both, in arrays on the GPU.
  void gradients(WriteMode write, T* dx, WriteMode write_shortcut = WriteMode::kAssign,
                 T* dshortcut = nullptr) {
    on_gpu([&](const T* dy, const T* x, const cuda::Gate<T>& gate) {
      cuda::input_gradient(dy, x, given_.layout, source(), write, dx, &workspace_, stream_, gate,
                           write_shortcut, dshortcut);
    });
  }

  /// Of mean, variance and inverse deviation.
  std::vector<double> statistics() const { return forward_.statistics.download(); }
  std::vector<R> gamma_gradient() const { return gamma_gradient_.download(); }
  std::vector<R> beta_gradient() const { return beta_gradient_.download(); }

 private:
  /// Calls run(dy, x, gate) with what is on the GPU.
  template <class Run>
  void on_gpu(const Run& run) {
    const bool in_place = given_.in_place();
    const DeviceArray<T> gradient(stream_, given_.dy.elements, offset_);
    const DeviceArray<T> input(stream_, given_.x.elements, offset_);
    const DeviceArray<T> output(stream_, given_.y.elements, in_place ? offset_ : other_offset_);
    cuda::Gate<T> gate{};
    gate.activation = given_.activation;
    if (gate.activation.type != ActType::kNone || in_place) {
      if (given_.by == By::kInput) gate.normalizations = normalizations_.data();
      if (given_.by != By::kInput) gate.y = output.data();
    }
    if (in_place) {
      gate.inplace = true;
      gate.inv_std = inv_std_.data();
      gate.gamma = forward_.source.gamma;
      gate.beta = forward_.source.beta;
    }
    run(gradient.data(), in_place ? nullptr : input.data(), gate);
    stream_->synchronize();
  }
  cuda::BackwardSource<R> source() {
    cuda::BackwardSource<R> source{};
    if (given_.of_batch) source.messages.add(message_.data(), given_.layout.count());
    source.own = message_.data();
    source.channels = given_.layout.channels;
    source.mean = mean_.data();
    source.inv_std = inv_std_.data();
    source.gamma = forward_.source.gamma;
    source.count = given_.kCount;
    source.sums = merged_sums_.data();
    source.gamma_gradient = {gamma_gradient_.data(), false};
    source.beta_gradient = {beta_gradient_.data(), true};
    return source;
  }

  const LayerCase<T>& given_;
  const std::size_t offset_, other_offset_;
  cuda::Stream* const stream_;
  Workspace workspace_;
  ForwardArrays<R> forward_;
  const DeviceArray<cuda::StoredAffine<R>> normalizations_;
  const DeviceArray<R> gamma_gradient_, beta_gradient_;
  const DeviceArray<double> merged_sums_, inv_std_, mean_, message_;
};

/// Of sums.
template <class T>
constexpr long double kUnitOfSums = 4 * Type<T>::kUnit;

/// After two gradients of the input, of which the first has found `before`.
template <class T>
void check_parameter_gradients(const LayerCase<T>& given, const GpuPhases<T>& phases,
                               const std::vector<Real<T>>& before) {
  using R = Real<T>;
  const std::vector<R> of_gamma = phases.gamma_gradient(), of_beta = phases.beta_gradient();
  for (std::size_t c = 0; c < given.channels(); ++c) {
    const double product = given.sum_dz_centered[c] * static_cast<double>(given.inv_std(c));
    REQUIRE(of_gamma[c] == static_cast<R>(product));
    const R once = static_cast<R>(static_cast<double>(before[c]) + given.sum_dz[c]);
    REQUIRE(of_beta[c] == static_cast<R>(static_cast<double>(once) + given.sum_dz[c]));
  }
}

}  // namespace

TEST_CASE_TEMPLATE("cuda activations: outputs and statistics, with a shortcut and without", T,
                   float, double, Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  cuda::Stream stream(0);
  for_each_case<T>(gpu_layouts(), [&](const LayerCase<T>* given, std::uint32_t number) {
    GpuPhases<T> phases(&stream, *given, number);
    check_outputs(*given, &phases);
    const std::vector<double> statistics = phases.statistics();
    const std::size_t channels = given->channels();
    for (std::size_t c = 0; c < channels; ++c) {
      REQUIRE(statistics[c] == given->means[c]);
      REQUIRE(statistics[channels + c] == given->m2[c] / given->kCount);
      REQUIRE(statistics[2 * channels + c] ==
              doctest::Approx(static_cast<double>(given->inv_std(c))).epsilon(1e-15));
    }
  });
}

TEST_CASE_TEMPLATE("cuda activations: gradients and their sums", T, float, double, Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  cuda::Stream stream(0);
  for_each_case<T>(gpu_layouts(), [&](LayerCase<T>* given, std::uint32_t number) {
    GpuPhases<T> phases(&stream, *given, number);
    for_each_by(given, [&] {
      check_gradient_sums(*given, &phases, kUnitOfSums<T>);
      const auto before = phases.beta_gradient();
      check_dx(*given,
               [&](WriteMode write, std::vector<T>* dx) { phases.input_gradient(write, dx); });
      check_parameter_gradients(*given, phases, before);
      if (given->by != By::kOutput) return;
      // That of the shortcut alone, and with dx, of which one is added to.
      const WriteMode assign = WriteMode::kAssign, add = WriteMode::kAdd;
      const DeviceArray<T> other(&stream, given->x.elements);
      check_dshortcut(*given, [&](WriteMode write, std::vector<T>* dz) {
        phases.shortcut_gradient(write, dz);
      });
      check_dx(*given, on_device<T>(&stream, 0, [&](WriteMode write, T* dx) {
        phases.gradients(write, dx, assign, other.data());
      }));
      check_dshortcut(*given, on_device<T>(&stream, 1, [&](WriteMode write, T* dz) {
        phases.gradients(add, other.data(), write, dz);
      }));
    });
  });
}

TEST_CASE_TEMPLATE("cuda activations: at 0 the slope is that from below", T, float, double, Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  cuda::Stream stream(0);
  for (const Layout& layout : {Layout{5, 6, 1}, Layout{2, 6, 49}, Layout{300, 1, 1},
                               Layout{33, 5, 17}, Layout{1, 3, 2049}, Layout{700, 9, 5}}) {
    if (layout.count() * layout.channels > 2 * kMostElements) continue;
    for (const Activation& activation : kActivations) {
      auto given = case_at_kink<T>(layout, activation);
      GpuPhases<T> phases(&stream, given);
      check_outputs(given, &phases);
      for_each_by(&given, [&] {
        check_gradient_sums(given, &phases, 2 * kUnitOfSums<T>);  // errors are all alike
        check_gradients(given, &phases);
      });
    }
  }
}

TEST_CASE_TEMPLATE("cuda activations: what is not finite, and where ELU is flat", T, float, double,
                   Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  cuda::Stream stream(0);
  const auto phases_of = [&](const LayerCase<T>& given) { return GpuPhases<T>(&stream, given); };
  for (const Layout& layout : {Layout{1, 1, 64}, Layout{64, 1, 1}}) {
    check_not_finite<T>(layout, phases_of);
    check_flat<T>(layout, phases_of);
  }
}

TEST_CASE_TEMPLATE("cuda activations: the same bits every time", T, float, Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  cuda::Stream stream(0);
  for (const Layout& layout :
       {Layout{3, 65, 49}, Layout{3000, 65, 1}, Layout{2, 2, 9973}, Layout{700, 64, 5}}) {
    if (layout.count() * layout.channels > 8 * kMostElements) continue;
    LayerCase<T> given(layout, {ActType::kElu, 1}, 5);
    for_each_by(&given, [&] {
      const auto run = [&] {
        GpuPhases<T> phases(&stream, given, 5);
        std::vector<T> y(given.x.elements.size());
        phases.normalize(WriteMode::kAssign, given.by == By::kOutput, &y);
        const DeviceArray<T> dx(&stream, y), dshortcut(&stream, y);
        phases.gradients(WriteMode::kAssign, dx.data(), WriteMode::kAssign,
                         given.by == By::kOutput ? dshortcut.data() : nullptr);
        return std::make_tuple(y, phases.gradient_sums(), dx.download(), dshortcut.download());
      };
      check_same_in_all_orders(run);
    });
  }
}

}  // namespace gluon_syncbn::tests
