// Loops over arrays in which a channel's elements lie in long runs.

#pragma once

#include <cstdint>

#include "common/layout.h"
#include "cpu/simd/activations.h"
#include "cpu/simd/elementwise.h"
#include "cpu/simd/isa.h"
#include "cpu/simd/statistics.h"
#include "cpu/simd/vectors.h"
#include "cpu/tuning.h"
#include "norm/activation.h"
#include "norm/coefficients.h"
#include "norm/merge_weight.h"
#include "norm/variants.h"

namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA {
namespace {

/// Elements of a block, which sums deviations from one pivot. A block fits the first-level cache,
/// in case a bad pivot needs a second read.
constexpr std::int64_t kBlock = kAddsPerLane * kChains * kDoubles;

/// A part of one channel: runs of equal length at equal distances.
struct Block {
  std::int64_t begin;
  std::int64_t length;
  std::int64_t runs;
  std::int64_t distance;

  GLUON_SYNCBN_INLINE std::int64_t count() const { return runs * length; }
};

/// Calls visit(block) for all blocks of a channel in a fixed order. A block has several short runs,
/// or a piece of a long run.
template <class Visit>
GLUON_SYNCBN_INLINE void for_each_block(const Layout& layout, std::int64_t channel,
                                        const Visit& visit) {
  const std::int64_t distance = layout.channels * layout.inner;
  const std::int64_t length = smaller(layout.inner, kBlock);
  const std::int64_t group = kBlock / length;
  for (std::int64_t outer = 0; outer < layout.outer; outer += group) {
    const std::int64_t runs = smaller(group, layout.outer - outer);
    const std::int64_t first = outer * distance + channel * layout.inner;
    for (std::int64_t i = 0; i < layout.inner; i += length) {
      visit(Block{first + i, smaller(length, layout.inner - i), runs, distance});
    }
  }
}

/// Sums terms(like, i) over a block, where i is the index of a vector's first element.
template <class EachTerms>
GLUON_SYNCBN_INLINE Terms<double> sum_block(const Block& block, const EachTerms& terms) {
  Terms<Doubles> sums[kChains] = {};
  Terms<OneDouble> rest = {};
  for (std::int64_t run = 0; run < block.runs; ++run) {
    std::int64_t i = block.begin + run * block.distance;
    const std::int64_t end = i + block.length;
    for (; i + kChains * kDoubles <= end; i += kChains * kDoubles) {
#pragma GCC unroll kChains
      for (std::int64_t k = 0; k < kChains; ++k) sums[k] += terms(Doubles{}, i + k * kDoubles);
    }
    for (; i + kDoubles <= end; i += kDoubles) sums[0] += terms(Doubles{}, i);
    for (; i < end; ++i) rest += terms(OneDouble{}, i);
  }
  static_assert(kChains == 4, "a loop over the sums would move them to memory");
  sums[0] += sums[1];
  sums[2] += sums[3];
  sums[0] += sums[2];
  return {sum_of_lanes(sums[0].first) + rest.first[0],
          sum_of_lanes(sums[0].second) + rest.second[0]};
}

template <class T>
GLUON_SYNCBN_INLINE PivotSums pivot_sums(const T* x, const Block& block, double pivot) {
  const Terms<double> sums = sum_block(block, [&](auto like, std::int64_t i) GLUON_SYNCBN_INLINED {
    const auto d = load(like, x + i) - pivot;
    return Terms<decltype(like)>{d, d * d};
  });
  return {pivot, sums.first, sums.second};
}

template <class T>
void run_moments(const T* x, const Layout& layout, std::int64_t channels, double* means,
                 double* m2s) {
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    // The mean of the first vector is a near pivot, so the first block is rarely read twice.
    static_assert(Layout::kShortInner >= kDoubles);
    double mean = sum_of_lanes(load(Doubles{}, x + channel * layout.inner)) / kDoubles;
    double m2 = 0;
    std::int64_t count = 0;
    for_each_block(layout, channel, [&](const Block& block) {
      const std::int64_t n = block.count();
      PivotSums d = pivot_sums(x, block, mean);
      const double share = 1 / static_cast<double>(n);
      if (d.is_far(share)) d = pivot_sums(x, block, d.mean(share));
      MergeWeight::of(count, n).merge(d.mean(share), d.m2(share), &mean, &m2);
      count += n;
    });
    means[channel] = mean;
    m2s[channel] = m2;
  }
}

template <class T>
void run_gradient_sums(const BackwardInputs<T>& inputs, const Layout& layout, std::int64_t channels,
                       const Affine<const double*>& n, double* first, double* second) {
  with_terms(inputs, [&](const auto& arrays, const auto& terms) GLUON_SYNCBN_INLINED {
    for (std::int64_t channel = 0; channel < channels; ++channel) {
      first[channel] = second[channel] = 0;
      for_each_block(layout, channel, [&](const Block& block) {
        const Terms<double> more =
            sum_block(block, [&](auto like, std::int64_t i) GLUON_SYNCBN_INLINED {
              const auto of_channel = [&](const double* array) GLUON_SYNCBN_INLINED {
                return broadcast(like, array[channel]);
              };
              return (arrays + i).apply(like, terms, n.map(of_channel));
            });
        first[channel] += more.first;
        second[channel] += more.second;
      });
    }
  });
}

/// Writes all runs of some channels, in the order of memory.
template <class T, int kInputs, class F, class Coefficients>
GLUON_SYNCBN_INLINE void write_runs(const Inputs<T, kInputs>& inputs, const Layout& layout,
                                    std::int64_t channels, const F& f, const Coefficients& n,
                                    StoreMode how, T* out) {
  for (std::int64_t outer = 0; outer < layout.outer; ++outer) {
    for (std::int64_t c = 0; c < channels; ++c) {
      const std::int64_t begin = (outer * layout.channels + c) * layout.inner;
      const Inputs<T, kInputs> of_run = inputs + begin;
      write(out + begin, layout.inner, how, [&](auto like) GLUON_SYNCBN_INLINED {
        const auto of_channel = [&](const Real<T>* array)
                                    GLUON_SYNCBN_INLINED { return broadcast(like, array[c]); };
        return [&of_run, &f, like, of_c = n.map(of_channel)](std::int64_t i)
                   GLUON_SYNCBN_INLINED { return (of_run + i).apply(like, f, of_c); };
      });
    }
  }
  end_of_stream(how);
}

template <class T>
void run_normalize(const T* x, const T* shortcut, const Layout& layout, std::int64_t channels,
                   const Affine<const Real<T>*>& n, const Activation& activation, StoreMode how,
                   T* y) {
  with_normalization(x, shortcut, activation,
                     [&](const auto& inputs, const auto& f) GLUON_SYNCBN_INLINED {
                       write_runs(inputs, layout, channels, f, n, how, y);
                     });
}

template <class T>
void run_input_gradient(const BackwardInputs<T>& inputs, const Layout& layout,
                        std::int64_t channels, const GradientAndShift<const Real<T>*>& n,
                        StoreMode how, T* dx) {
  with_input_gradient(inputs, [&](const auto& arrays, const auto& f) GLUON_SYNCBN_INLINED {
    write_runs(arrays, layout, channels, f, n, how, dx);
  });
}

}  // namespace
}  // namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA
