#include "cuda/kernels/phases.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "common/dtype.h"
#include "cuda/kernel.h"
#include "cuda/kernels/elementwise.h"
#include "cuda/kernels/merge_blocks.h"
#include "cuda/kernels/merge_devices.h"
#include "cuda/kernels/reduce.h"
#include "cuda/kernels/sources.h"
#include "cuda/kernels/thread_per_channel.h"
#include "cuda/kernels/tiling.h"
#include "norm/activation.h"
#include "norm/coefficients.h"
#include "norm/invertible.h"
#include "norm/per_channel.h"
#include "norm/variants.h"

namespace gluon_syncbn::cuda {
namespace {

template <class Result>
Result* new_results(const Launcher& launcher, std::int64_t number) {
  static_assert(sizeof(Result) % sizeof(double) == 0);
  return reinterpret_cast<Result*>(
      launcher.scratch(static_cast<std::size_t>(number) * sizeof(Result) / sizeof(double)));
}

/// Makes arrays lie alike within 16 bytes, and at a multiple of 16 bytes for ChannelLast. All
/// arrays that MXNet allocates do, but a slice may not: the kernels get a copy of it.
template <class T>
class AlignedArrays {
 public:
  AlignedArrays(const Layout& layout, const Launcher& launcher, const T* first)
      : layout_(layout),
        launcher_(launcher),
        bytes_(static_cast<std::size_t>(layout.channels * layout.count()) * sizeof(T)),
        is_matrix_(ChannelLast::suits(layout, kWidest<T>)),
        phase_(is_matrix_ ? 0 : phase_of(first)) {}

  template <int kNumber>
  std::array<const T*, kNumber> inputs(const T* const* arrays) {
    std::array<const T*, kNumber> aligned{};
    std::transform(arrays, arrays + kNumber, aligned.begin(), [this](const T* array) {
      return phase_of(array) == phase_ ? array : copy(array);
    });
    return aligned;
  }
  Output<T> output(const Output<T>& wanted) {
    if (!wanted.to || phase_of(wanted.to) == phase_) return wanted;
    T* const near = wanted.add ? copy(wanted.to) : place();
    copies_.emplace_back(wanted.to, near);
    return {near, wanted.add};
  }
  /// Calls launch(tiling), unless this is a rehearsal.
  template <class Launch>
  void launch_with_tiling(bool for_sums, const Launch& launch) const {
    if (launcher_.is_rehearsal) return;
    if (is_matrix_) {
      launch(ChannelLast::of(layout_, kWidest<T>, for_sums));
    } else {
      launch(ChannelFirst::of(layout_, kWidest<T>, phase_, for_sums));
    }
    for (const auto& [to, from] : copies_) launcher_.stream->copy(to, from, bytes_);
  }

 private:
  static int phase_of(const T* array) {
    return static_cast<int>(reinterpret_cast<std::uintptr_t>(array) % 16 / sizeof(T));
  }
  T* place() {
    return reinterpret_cast<T*>(launcher_.scratch(bytes_ / sizeof(double) + 3)) + phase_;
  }
  T* copy(const T* array) {
    T* const near = place();
    if (!launcher_.is_rehearsal) launcher_.stream->copy(near, array, bytes_);
    return near;
  }

  const Layout& layout_;
  const Launcher& launcher_;
  const std::size_t bytes_;
  const bool is_matrix_;
  const int phase_;  // the number of elements from the last multiple of 16 bytes to each array
  std::vector<std::pair<T*, T*>> copies_;
};

/// Computes the sums of `Accumulator` of all channels into `message`.
template <class Accumulator, class T>
void reduce(const Layout& layout, const T* const* inputs, const typename Accumulator::Gate& gate,
            const Message& message, const Launcher& launcher) {
  using OfResults = typename Accumulator::OfResults;
  if (launcher.is_rehearsal) {
    return launcher.load<Reduce<ChannelFirst, T, Accumulator>, Reduce<ChannelLast, T, Accumulator>,
                         MergeBlocks<OfResults>>();
  }
  if (layout.is_empty()) {
    return launcher.stream->zero(message.numbers,
                                 2 * static_cast<std::size_t>(layout.channels) * sizeof(double));
  }
  AlignedArrays<T> arrays(layout, launcher, inputs[0]);
  const auto aligned = arrays.template inputs<Accumulator::kInputs>(inputs);
  arrays.launch_with_tiling(true, [&](const auto& tiling) {
    using Body = Reduce<std::decay_t<decltype(tiling)>, T, Accumulator>;
    using Result = typename Body::Result;
    const ResultPlaces places = tiling.results();
    Result* results = places.number == 1
                          ? nullptr
                          : new_results<Result>(launcher, places.number * layout.channels);
    Body sums{tiling, {}, gate, places.columns, results, message};
    std::copy(aligned.begin(), aligned.end(), sums.inputs);
    launcher.launch(sums, tiling.blocks());
    if (!results) return;
    launcher.launch(
        MergeBlocks<OfResults>{results, places, layout.channels, gate.parameters, message});
  });
}

template <class T>
using Outputs = std::array<Output<T>, 2>;

template <class T>
Output<T> output_of(WriteMode write, void* to) {
  return {static_cast<T*>(to), write == WriteMode::kAdd};
}

/// Computes the output arrays that are not null from inputs of the same shape.
template <class T, class Source>
void write_outputs(const Layout& layout, const T* const* inputs, const Source& source,
                   const Outputs<T>& outputs, const Launcher& launcher) {
  if (launcher.is_rehearsal) {
    launcher.load<Elementwise<ChannelFirst, T, Source>, Elementwise<ChannelLast, T, Source>>();
  }
  if ((!outputs[0].to && !outputs[1].to) || layout.is_empty()) return;
  AlignedArrays<T> arrays(layout, launcher, inputs[0]);
  const auto near = arrays.template inputs<Source::kInputs>(inputs);
  const Outputs<T> aligned{arrays.output(outputs[0]), arrays.output(outputs[1])};
  arrays.launch_with_tiling(false, [&](const auto& tiling) {
    const std::int64_t blocks = tiling.blocks();
    Elementwise<std::decay_t<decltype(tiling)>, T, Source> body{
        tiling, static_cast<std::uint32_t>(blocks - 1), {}, source, {}};
    std::copy(near.begin(), near.end(), body.inputs);
    std::copy_n(aligned.begin(), Source::kOutputs, body.outputs);
    launcher.launch(body, blocks);
  });
}

template <DzFrom kFrom, class T>
Gate<Real<T>, kFrom> gate_of(const Backward& work) {
  using R = Real<T>;
  return {Activator<R>(work.activation, kSaturation<T>), parameters_of<R>(work, work.saved),
          static_cast<const Affine<R>*>(work.saved.normalizations.get())};
}

template <class T>
void launch_sums_of(const Forward& work, const Message& message, const Launcher& launcher) {
  const T* const inputs[] = {static_cast<const T*>(work.x)};
  reduce<Deviations<Real<T>>>(work.kind.layout, inputs, {}, message, launcher);
}

template <class T>
void launch_sums_of(const Backward& work, const Message& message, const Launcher& launcher) {
  with_dz_from(work.dz_from, [&](auto variant) {
    constexpr DzFrom kFrom = decltype(variant)::kFrom;
    reduce<Products<Real<T>, kFrom>>(work.kind.layout, work.inputs<T>().arrays,
                                     gate_of<kFrom, T>(work), message, launcher);
  });
}

template <class T>
void launch_outputs_of(const Forward& work, const Messages& messages, const Saved& saved,
                       const Launcher& launcher) {
  using R = Real<T>;
  ForwardMerge<R> merge{};
  if (work.is_inference) {
    merge.running_mean = static_cast<const R*>(work.running.mean);
    merge.running_variance = static_cast<const R*>(work.running.variance);
  } else {
    merge.messages = messages;
    if (messages.count > 0) merge.averages = work.running.averages<R>();
  }
  merge.channels = work.kind.layout.channels;
  merge.eps = work.eps;
  merge.mean = saved.mean.get();
  merge.inv_std = saved.inv_std.get();
  merge.gamma = static_cast<const R*>(work.gamma);
  merge.beta = static_cast<const R*>(work.beta);
  merge.normalizations = static_cast<Affine<R>*>(saved.normalizations.get());
  launcher.launch(PerChannel<ForwardMerge<R>>{merge, merge.channels});
  if (merge.averages.num_batches) launcher.launch(PerChannel<CountBatch<R>>{{merge.averages}, 1});

  const T* const inputs[] = {static_cast<const T*>(work.x), static_cast<const T*>(work.shortcut)};
  with_y_from(work.activation.type, work.shortcut != nullptr, [&](auto variant) {
    using Source = Normalization<R, decltype(variant)::kFrom>;
    const Source source{merge.normalizations,
                        decltype(Source::act)(work.activation, kSaturation<T>)};
    write_outputs<T>(work.kind.layout, inputs, source, {output_of<T>(work.write, work.y)},
                     launcher);
  });
}

template <class T>
void launch_outputs_of(const Backward& work, const Messages& messages, const double* own,
                       std::uint32_t* first_not_invertible, const Launcher& launcher) {
  using R = Real<T>;
  BackwardMerge<R> merge{};
  merge.messages = messages;
  merge.own = own;
  merge.channels = work.kind.layout.channels;
  merge.parameters = parameters_of<R>(work, work.saved);
  merge.inplace = work.inplace();
  merge.count = static_cast<double>(work.saved.count);
  merge.parameter_gradients = work.parameter_gradients<R>();
  merge.check = {Invertible::of(work.kind.dtype, work.activation), first_not_invertible};
  merge.gradients = new_results<Gradient<R>>(launcher, merge.channels);
  launcher.launch(PerChannel<BackwardMerge<R>>{merge, merge.channels});

  const Gradients& to = work.gradients;
  // Without an activation, a kernel that reads y gives both gradients: there, dy stands for y.
  const bool adds_output = to.shortcut && work.dz_from == DzFrom::kDy;
  with_dz_from(adds_output ? DzFrom::kOutput : work.dz_from, [&](auto variant) {
    constexpr DzFrom kFrom = decltype(variant)::kFrom;
    const InputGradient<R, kFrom> source{merge.gradients, gate_of<kFrom, T>(work)};
    write_outputs<T>(
        work.kind.layout, work.inputs<T>().arrays, source,
        {output_of<T>(to.write_data, to.data), output_of<T>(to.write_shortcut, to.shortcut)},
        launcher);
  });
}

}  // namespace

void launch_sums(const Work& work, const Message& message, const Launcher& launcher) {
  std::visit(
      [&](const auto& each) {
        dispatch(each.kind.dtype, [&](auto types) {
          launch_sums_of<typename decltype(types)::Data>(each, message, launcher);
        });
      },
      work);
}

void launch_outputs(const Forward& work, const Messages& messages, const Saved& saved,
                    const Launcher& launcher) {
  dispatch(work.kind.dtype, [&](auto types) {
    launch_outputs_of<typename decltype(types)::Data>(work, messages, saved, launcher);
  });
}

void launch_outputs(const Backward& work, const Messages& messages, const double* own,
                    std::uint32_t* first_not_invertible, const Launcher& launcher) {
  dispatch(work.kind.dtype, [&](auto types) {
    launch_outputs_of<typename decltype(types)::Data>(work, messages, own, first_not_invertible,
                                                      launcher);
  });
}

}  // namespace gluon_syncbn::cuda
