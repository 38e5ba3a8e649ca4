#include "cpu/device_pass.h"

#include <cstdint>

#include "common/dtype.h"
#include "common/error.h"
#include "norm/coefficients.h"
#include "norm/invertible.h"
#include "norm/per_channel.h"

namespace gluon_syncbn::cpu {
namespace {

/// Returns visit(T()) for the type T of the data.
template <class Visit>
auto with_type(const ArrayKind& kind, const Visit& visit) {
  return dispatch(kind.dtype, [&](auto types) { return visit(typename decltype(types)::Data()); });
}

/// Element c of an array of P.
template <class P>
double number(const void* array, std::int64_t c) {
  return static_cast<double>(static_cast<const P*>(array)[c]);
}

}  // namespace

Stores prepare_outputs(const Pass& pass) {
  return with_type(pass.kind(), [&](auto zero) -> Stores {
    using T = decltype(zero);
    const Layout& layout = pass.kind().layout;
    if (const Forward* work = pass.forward()) {
      return {prepare_output(work->write, layout, static_cast<T*>(work->y)), {}};
    }
    const Gradients& to = pass.backward()->gradients;
    return {prepare_output(to.write_data, layout, static_cast<T*>(to.data)),
            prepare_output(to.write_shortcut, layout, static_cast<T*>(to.shortcut))};
  });
}

void require_invertible(const Backward& work) {
  const Invertible invertible = Invertible::of(work.kind.dtype, work.activation);
  with_type(work.kind, [&](auto zero) {
    using P = Real<decltype(zero)>;
    for (std::int64_t c = 0; c < work.kind.layout.channels; ++c) {
      const auto gamma = static_cast<double>(gamma_of(static_cast<const P*>(work.gamma), c));
      const double beta = number<P>(work.beta, c);
      if (!invertible.holds(gamma, beta)) throw Error(invertible.error(c, gamma, beta));
    }
  });
}

void sum(const Pass& pass, Channels channels) {
  with_type(pass.kind(), [&](auto zero) {
    using T = decltype(zero);
    const Layout& layout = pass.kind().layout;
    if (const Forward* work = pass.forward()) {
      return moments(static_cast<const T*>(work->x), layout, channels, pass.statistics);
    }
    const Backward& work = *pass.backward();
    gradient_sums(work.inputs<T>(), layout, channels, parameters_of<Real<T>>(work, work.saved),
                  pass.statistics);
  });
}

Saved new_saved(const PartialStatistics& merged) {
  return {merged.numbers, new_zeros(merged.channels), nullptr, merged.count};
}

void set_inv_std(const Forward& work, const PartialStatistics& merged, Channels channels,
                 const Saved& saved) {
  for (auto c = channels.begin; c < channels.end; ++c) {
    saved.inv_std.get()[c] = inv_std_of(merged.variance(c), work.eps);
  }
}

Saved running_statistics(const Forward& work) {
  const std::int64_t channels = work.kind.layout.channels;
  const Saved saved{new_zeros(channels), new_zeros(channels), nullptr, 0};
  with_type(work.kind, [&](auto zero) {
    using P = Real<decltype(zero)>;
    for (std::int64_t c = 0; c < channels; ++c) {
      saved.mean.get()[c] = number<P>(work.running.mean, c);
      saved.inv_std.get()[c] = inv_std_of(number<P>(work.running.variance, c), work.eps);
    }
  });
  return saved;
}

void write_outputs(const Pass& pass, const PartialStatistics& merged, const Saved& saved,
                   const Stores& stores, Channels channels) {
  with_type(pass.kind(), [&](auto zero) {
    using T = decltype(zero);
    const Layout& layout = pass.kind().layout;
    if (const Forward* work = pass.forward()) {
      if (!work->y) return;
      return normalize(static_cast<const T*>(work->x), layout, channels,
                       parameters_of<Real<T>>(*work, saved), work->activation, stores.data,
                       static_cast<T*>(work->y), static_cast<const T*>(work->shortcut));
    }
    const Backward& work = *pass.backward();
    const auto inputs = work.inputs<T>();
    if (auto* const shortcut = static_cast<T*>(work.gradients.shortcut)) {
      shortcut_gradient(inputs, layout, channels, stores.shortcut, shortcut);
    }
    if (auto* const dx = static_cast<T*>(work.gradients.data)) {
      input_gradient(inputs, layout, channels, parameters_of<Real<T>>(work, work.saved), merged,
                     static_cast<double>(saved.count), stores.data, dx);
    }
  });
}

void write_channel_results(const Pass& pass, const PartialStatistics& merged, const Saved& saved) {
  with_type(pass.kind(), [&](auto zero) {
    using P = Real<decltype(zero)>;
    if (const Forward* work = pass.forward()) {
      *work->saved = saved;
      if (merged.count == 0) return;
      const RunningAverages<P> averages = work->running.averages<P>();
      for (std::int64_t c = 0; c < merged.channels; ++c) {
        averages.move(c, merged.mean()[c], merged.variance(c));
      }
      return averages.count_batch();
    }
    const Backward& work = *pass.backward();
    const auto gradients = work.parameter_gradients<P>();
    for (std::int64_t c = 0; c < pass.statistics.channels; ++c) {
      gradients.put(c, pass.statistics.dz()[c], pass.statistics.dz_centered()[c],
                    saved.inv_std.get()[c]);
    }
  });
}

}  // namespace gluon_syncbn::cpu
