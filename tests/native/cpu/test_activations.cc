#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "cpu/kernels.h"
#include "norm/activation.h"
#include "norm/moments.h"
#include "support/activations.h"
#include "support/arrays.h"
#include "support/isa_cases.h"
#include "support/layer_case.h"
#include "support/layouts.h"
#include "support/whole_arrays.h"

namespace gluon_syncbn::tests {
namespace {

/// What the kernels compute for a case.
template <class T>
class CpuPhases {
 public:
  explicit CpuPhases(const LayerCase<T>& given)
      : given_(given),
        numbers_{given.means, given.inv_stds(), given.beta,
                 given.fix_gamma ? std::vector<Real<T>>() : given.gamma},
        sums_{given.sum_dz, given.sum_dz_centered} {}

  void normalize(WriteMode write, bool adds_shortcut, std::vector<T>* y) const {
    cpu::normalize(given_.x.data(), given_.layout, numbers_, write, y->data(), given_.activation,
                   adds_shortcut ? given_.y.data() : nullptr);
  }
  std::vector<double> gradient_sums() const {
    return cpu::gradient_sums(given_.dy.data(), input(), given_.layout, numbers_, gate())
        .packed()
        .values;
  }
  void input_gradient(WriteMode write, std::vector<T>* dx) const {
    cpu::input_gradient(given_.dy.data(), input(), given_.layout, numbers_,
                        given_.of_batch ? &sums_ : nullptr, given_.kCount, write, dx->data(),
                        gate());
  }
  void shortcut_gradient(WriteMode write, std::vector<T>* dz) const {
    cpu::shortcut_gradient(given_.dy.data(), given_.layout, write, dz->data(), gate());
  }

 private:
  const T* input() const { return given_.in_place() ? nullptr : given_.x.data(); }
  cpu::Gate<T> gate() const {
    return {given_.activation, given_.by == By::kInput ? nullptr : given_.y.data()};
  }

  const LayerCase<T>& given_;
  const cpu::Numbers<T> numbers_;
  const GradientSums sums_;
};

/// Sums are in double.
constexpr long double kUnitOfSums = 1e-14L;

}  // namespace

TEST_CASE_TEMPLATE("activations: outputs, with a shortcut and without", Given, GLUON_SYNCBN_CASES) {
  using T = typename Given::Type;
  const UseIsa use(Given::kIsa);
  for_each_case<T>(cpu_layouts(), [](const LayerCase<T>* given, std::uint32_t) {
    const CpuPhases<T> phases(*given);
    check_outputs(*given, &phases);
  });
}

TEST_CASE_TEMPLATE("activations: gradients and their sums", Given, GLUON_SYNCBN_CASES) {
  using T = typename Given::Type;
  const UseIsa use(Given::kIsa);
  for_each_case<T>(cpu_layouts(), [](LayerCase<T>* given, std::uint32_t) {
    const CpuPhases<T> phases(*given);
    for_each_by(given, [&] {
      check_gradient_sums(*given, &phases, kUnitOfSums);
      check_gradients(*given, &phases);
    });
  });
}

TEST_CASE_TEMPLATE("activations: at 0 the slope is that from below", Given, GLUON_SYNCBN_CASES) {
  using T = typename Given::Type;
  const UseIsa use(Given::kIsa);
  for (const Layout& layout : {Layout{5, 6, 1}, Layout{2, 6, 49}, Layout{33, 5, 17},
                               Layout{1, 3, 2049}, Layout{300, 1, 1}, Layout{1, 1, 1}}) {
    for (const Activation& activation : kActivations) {
      auto given = case_at_kink<T>(layout, activation);
      const CpuPhases<T> phases(given);
      check_outputs(given, &phases);
      for_each_by(&given, [&] {
        check_gradient_sums(given, &phases, kUnitOfSums);
        check_gradients(given, &phases);
      });
    }
  }
}

TEST_CASE_TEMPLATE("activations: what is not finite, and where ELU is flat", Given,
                   GLUON_SYNCBN_CASES) {
  using T = typename Given::Type;
  const UseIsa use(Given::kIsa);
  const auto phases_of = [](const LayerCase<T>& given) { return CpuPhases<T>(given); };
  for (const Layout& layout : {Layout{1, 1, 64}, Layout{64, 1, 1}}) {
    check_not_finite<T>(layout, phases_of);
    check_flat<T>(layout, phases_of);
  }
}

}  // namespace gluon_syncbn::tests
