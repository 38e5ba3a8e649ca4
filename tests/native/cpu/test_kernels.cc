#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>
#include <vector>

#include "common/half.h"
#include "common/layout.h"
#include "cpu/kernels.h"
#include "cpu/simd/isa.h"
#include "cpu/thread_pool.h"
#include "norm/moments.h"
#include "support/arrays.h"
#include "support/isa_cases.h"
#include "support/layouts.h"
#include "support/outputs.h"
#include "support/values.h"
#include "support/whole_arrays.h"

namespace gluon_syncbn::tests {
namespace {

/// Channels 1 to 3 of 6 hold a NaN, an infinity and a negative infinity at the last position.
template <class T>
Data<T> spoiled(const Data<T>& clean) {
  Data<T> x = clean;
  const double infinity = std::numeric_limits<double>::infinity();
  const double values[] = {std::numeric_limits<double>::quiet_NaN(), infinity, -infinity};
  for (std::int64_t c = 1; c <= 3; ++c) {
    const std::int64_t run = (x.layout.outer - 1) * x.layout.channels + c;
    x.elements[static_cast<std::size_t>(run * x.layout.inner + x.layout.inner - 1)] =
        Type<T>::of(values[c - 1]);
  }
  return x;
}

bool is_spoiled(std::size_t channel) { return channel >= 1 && channel <= 3; }

/// Whether exactly the spoiled channels of `values` are no longer those of `clean`, which is
/// finite.
bool spoils_its_channels(const std::vector<double>& values, const std::vector<double>& clean) {
  for (std::size_t c = 0; c < clean.size(); ++c) {
    if (is_spoiled(c) ? std::isfinite(values[c]) : values[c] != clean[c]) return false;
  }
  return values.size() == clean.size();
}

template <class T>
std::vector<double> moments_of(const Data<T>& x) {
  const Moments moments = cpu::moments(x.data(), x.layout);
  REQUIRE(moments.count == x.layout.count());
  return moments.packed().values;
}

/// With deviations of 1.
template <class T>
cpu::Numbers<T> numbers_of(const std::vector<double>& mean) {
  return {mean, std::vector<double>(mean.size(), 1), std::vector<Real<T>>(mean.size(), 1)};
}

const Layout kSpoiledLayouts[] = {{5, 6, 1}, {3, 6, 7}, {2, 6, 49}, {40, 6, 1}, {1, 6, 2049}};

}  // namespace

TEST_CASE_TEMPLATE("kernels: moments", Given, GLUON_SYNCBN_CASES) {
  using T = typename Given::Type;
  const UseIsa use(Given::kIsa);
  for_each_layout(cpu_layouts(), [](const Layout& layout, std::uint32_t number) {
    const Data<T> x(layout, mean_of(number), 1, 3);
    check_moments(x, moments_of(x), 0);
    const Data<T> constant(layout, mean_of(number), 0, 3);
    if constexpr (std::is_same_v<T, double>) {
      check_moments(constant, moments_of(constant), 0);
    } else {
      check_constant(constant, moments_of(constant));
    }
  });
}

TEST_CASE_TEMPLATE("kernels: moments and sums do not depend on where arrays lie", Given,
                   GLUON_SYNCBN_CASES) {
  using T = typename Given::Type;
  const UseIsa use(Given::kIsa);
  for (const Layout& layout : kSpoiledLayouts) {
    const Data<T> x(layout, 100, 1, 5);
    const auto n = numbers_of<T>(means_near(layout, 100, 6));
    const Moments moments = cpu::moments(x.data(), layout);
    const GradientSums sums = cpu::gradient_sums(x.data(), x.data(), layout, n);
    for (std::size_t offset = 1; offset < 8; ++offset) {
      std::vector<T> moved(offset);
      moved.insert(moved.end(), x.elements.begin(), x.elements.end());
      const T* data = moved.data() + offset;
      CHECK(same_bits(cpu::moments(data, layout), moments));
      CHECK(same_bits(cpu::gradient_sums(data, data, layout, n), sums));
    }
  }
}

TEST_CASE_TEMPLATE("kernels: outputs may be their own inputs", Given, GLUON_SYNCBN_CASES) {
  using T = typename Given::Type;
  const UseIsa use(Given::kIsa);
  for (const Layout& layout : kSpoiledLayouts) {
    const Data<T> x(layout, 10, 1, 5);
    const cpu::Numbers<T> n{means_near(layout, 10, 6), parameters(layout, 1, 7),
                            as<Real<T>>(parameters(layout, 0, 8))};
    std::vector<T> expected(x.elements.size());
    cpu::normalize(x.data(), layout, n, WriteMode::kAssign, expected.data());
    std::vector<T> in_place = x.elements;
    cpu::normalize(in_place.data(), layout, n, WriteMode::kAssign, in_place.data());
    CHECK(same_bits(in_place, expected));

    const Data<T> dy(layout, 0, 1, 9);
    const GradientSums sums{n.inv_std, n.mean};
    cpu::input_gradient(dy.data(), x.data(), layout, n, &sums, 7, WriteMode::kAssign,
                        expected.data());
    in_place = dy.elements;
    cpu::input_gradient(in_place.data(), x.data(), layout, n, &sums, 7, WriteMode::kAssign,
                        in_place.data());
    CHECK(same_bits(in_place, expected));
  }
}

TEST_CASE_TEMPLATE("kernels: NaN and infinity spoil their own channels only", Given,
                   GLUON_SYNCBN_CASES) {
  using T = typename Given::Type;
  const UseIsa use(Given::kIsa);
  for (const Layout& layout : kSpoiledLayouts) {
    CAPTURE(layout.outer);
    CAPTURE(layout.inner);
    const Data<T> clean(layout, 10, 1, 5);
    const Data<T> x = spoiled(clean);
    const Moments clean_moments = cpu::moments(clean.data(), layout);
    const Moments moments = cpu::moments(x.data(), layout);
    CHECK(spoils_its_channels(moments.mean, clean_moments.mean));
    CHECK(spoils_its_channels(moments.m2, clean_moments.m2));
    const Moments merged = merge_all<Moments>({clean_moments, moments, clean_moments});
    const Moments clean_merged = merge_all<Moments>({clean_moments, clean_moments, clean_moments});
    CHECK(spoils_its_channels(merged.mean, clean_merged.mean));
    CHECK(spoils_its_channels(merged.m2, clean_merged.m2));

    const Data<T> dy(layout, 0, 1, 9);
    const auto clean_n = numbers_of<T>(clean_moments.mean);
    const auto n = numbers_of<T>(moments.mean);
    const GradientSums clean_sums = cpu::gradient_sums(dy.data(), clean.data(), layout, clean_n);
    const GradientSums x_sums = cpu::gradient_sums(dy.data(), x.data(), layout, n);
    CHECK(same_bits(x_sums.dy, clean_sums.dy));
    CHECK(spoils_its_channels(x_sums.dy_centered, clean_sums.dy_centered));
    const GradientSums dy_sums =
        cpu::gradient_sums(spoiled(dy).data(), clean.data(), layout, clean_n);
    CHECK(spoils_its_channels(dy_sums.dy, clean_sums.dy));
    CHECK(spoils_its_channels(dy_sums.dy_centered, clean_sums.dy_centered));

    std::vector<T> y(x.elements.size()), dx(y), clean_y(y), clean_dx(y);
    const auto compute = [&](const Data<T>& from, const cpu::Numbers<T>& numbers,
                             const GradientSums& sums, std::vector<T>* out, std::vector<T>* d) {
      cpu::normalize(from.data(), layout, numbers, WriteMode::kAssign, out->data());
      cpu::input_gradient(dy.data(), from.data(), layout, numbers, &sums, 7, WriteMode::kAssign,
                          d->data());
    };
    compute(x, n, x_sums, &y, &dx);
    compute(clean, clean_n, clean_sums, &clean_y, &clean_dx);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      const long double now[] = {Type<T>::value(y[i]), Type<T>::value(dx[i])};
      const long double before[] = {Type<T>::value(clean_y[i]), Type<T>::value(clean_dx[i])};
      for (int k = 0; k < 2; ++k) {
        if (is_spoiled(x.channel(i)) ? std::isfinite(now[k]) : now[k] != before[k]) ++wrong;
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE_TEMPLATE("kernels: empty arrays", Given, GLUON_SYNCBN_CASES) {
  using T = typename Given::Type;
  const UseIsa use(Given::kIsa);
  for (const Layout& layout :
       {Layout{0, 3, 1}, Layout{0, 3, 49}, Layout{2, 3, 0}, Layout{2, 0, 1}, Layout{2, 0, 49}}) {
    const std::vector<double> zeros(static_cast<std::size_t>(layout.channels));
    const T* none = nullptr;
    const Moments moments = cpu::moments(none, layout);
    CHECK(moments.count == layout.count());
    CHECK(same_bits(moments.mean, zeros));
    CHECK(same_bits(moments.m2, zeros));
    const auto n = numbers_of<T>(zeros);
    const GradientSums sums = cpu::gradient_sums(none, none, layout, n);
    CHECK(same_bits(sums.dy, zeros));
    CHECK(same_bits(sums.dy_centered, zeros));
    T* nowhere = nullptr;
    cpu::normalize(none, layout, n, WriteMode::kAssign, nowhere);
    cpu::input_gradient(none, none, layout, n, &sums, 0, WriteMode::kAdd, nowhere);
  }
}

TEST_CASE_TEMPLATE("kernels: far outliers first, and a mean that moves", Given,
                   GLUON_SYNCBN_CASES) {
  using T = typename Given::Type;
  const UseIsa use(Given::kIsa);
  for (const Layout& layout : {Layout{6, 3, 5000}, Layout{40, 3, 49}, Layout{9000, 3, 1},
                               Layout{700, 131, 1}, Layout{500, 5, 3}}) {
    CAPTURE(layout.outer);
    CAPTURE(layout.inner);
    Data<T> x(layout, 3, 1, 11);
    const std::size_t row = x.elements.size() / static_cast<std::size_t>(layout.outer);
    for (std::size_t i = 0; i < x.elements.size(); ++i) {
      // Channel 0 begins with values that are no guess at its mean; channel 1 climbs.
      if (x.channel(i) == 0 && i < 8 * row && i % static_cast<std::size_t>(layout.inner) < 8) {
        x.elements[i] = Type<T>::of(1000.0);
      }
      if (x.channel(i) == 1) {
        const double climb =
            40.0 * static_cast<double>(i / row) / static_cast<double>(layout.outer);
        x.elements[i] = Type<T>::of(static_cast<double>(x.at(i)) + climb);
      }
    }
    check_moments(x, moments_of(x), 0);
  }
}

TEST_CASE_TEMPLATE("kernels: the same bits with any number of threads", Given, GLUON_SYNCBN_CASES) {
  using T = typename Given::Type;
  const UseIsa use(Given::kIsa);
  const int threads_before = num_threads();
  for (const Layout& layout :
       {Layout{2, 40, 20000}, Layout{13000, 70, 1}, Layout{40000, 3, 5}, Layout{300, 61, 49}}) {
    const Data<T> x(layout, 100, 1, 5);
    const Data<T> dy(layout, 0, 1, 6);
    const auto run = [&](int threads) {
      set_num_threads(threads);
      const Moments moments = cpu::moments(x.data(), layout);
      const auto n = numbers_of<T>(moments.mean);
      const GradientSums sums = cpu::gradient_sums(dy.data(), x.data(), layout, n);
      std::vector<T> y(x.elements.size()), dx(y);
      cpu::normalize(x.data(), layout, n, WriteMode::kAssign, y.data());
      cpu::input_gradient(dy.data(), x.data(), layout, n, &sums, 7, WriteMode::kAssign, dx.data());
      return std::make_tuple(moments, sums, y, dx);
    };
    const auto [moments, sums, y, dx] = run(1);
    for (const int threads : {2, 3, 7}) {
      const auto [other_moments, other_sums, other_y, other_dx] = run(threads);
      CHECK(same_bits(other_moments, moments));
      CHECK(same_bits(other_sums, sums));
      CHECK(same_bits(other_y, y));
      CHECK(same_bits(other_dx, dx));
    }
  }
  set_num_threads(threads_before);
}

TEST_CASE_TEMPLATE("kernels: large outputs, which are written past the caches", Given,
                   GLUON_SYNCBN_CASES) {
  using T = typename Given::Type;
  const UseIsa use(Given::kIsa);
  for (const Layout& layout : {Layout{1, 3, 1000003}, Layout{1500001, 3, 1}}) {
    const Data<T> x(layout, 10, 1, 5);
    const Data<T> dy(layout, 0, 1, 6);
    const cpu::Numbers<T> n{means_near(layout, 10, 6), parameters(layout, 1, 7),
                            as<Real<T>>(parameters(layout, 0, 8))};
    const GradientSums sums{n.inv_std, n.mean};
    for (const std::size_t offset : {0, 1, 3}) {
      // Adding to zero gives the same numbers by ordinary stores.
      std::vector<T> expected(x.elements.size());
      std::vector<T> out(x.elements.size() + offset + 1);
      const T past = Type<T>::of(77);
      out.back() = past;
      cpu::normalize(x.data(), layout, n, WriteMode::kAdd, expected.data());
      cpu::normalize(x.data(), layout, n, WriteMode::kAssign, out.data() + offset);
      CHECK(std::memcmp(out.data() + offset, expected.data(), expected.size() * sizeof(T)) == 0);
      expected.assign(expected.size(), T{});
      cpu::input_gradient(dy.data(), x.data(), layout, n, &sums, 7, WriteMode::kAdd,
                          expected.data());
      cpu::input_gradient(dy.data(), x.data(), layout, n, &sums, 7, WriteMode::kAssign,
                          out.data() + offset);
      CHECK(std::memcmp(out.data() + offset, expected.data(), expected.size() * sizeof(T)) == 0);
      CHECK(std::memcmp(&out.back(), &past, sizeof(T)) == 0);
    }
  }
}

}  // namespace gluon_syncbn::tests
