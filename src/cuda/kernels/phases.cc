#include "cuda/kernels/phases.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/dtype.h"
#include "cuda/kernel.h"
#include "cuda/kernels/elementwise.h"
#include "cuda/kernels/merge_blocks.h"
#include "cuda/kernels/reduce.h"
#include "cuda/kernels/sources.h"
#include "cuda/kernels/thread_per_channel.h"
#include "cuda/kernels/tiling.h"

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

  const T* input(const T* array) { return phase_of(array) == phase_ ? array : copy(array); }
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
template <template <class> class Accumulator, class T, class... Others>
void reduce(const Layout& layout, const double* statistic,
            const typename Accumulator<Real<T>>::Gate& gate, const Message& message,
            const Launcher& launcher, const T* first, const Others*... others) {
  using OfResults = typename Accumulator<Real<T>>::OfResults;
  if (launcher.is_rehearsal) {
    return launcher.load<Reduce<ChannelFirst, T, Accumulator>, Reduce<ChannelLast, T, Accumulator>,
                         MergeBlocks<OfResults>>();
  }
  if (layout.is_empty()) {
    return launcher.stream->zero(message.numbers,
                                 2 * static_cast<std::size_t>(layout.channels) * sizeof(double));
  }
  AlignedArrays<T> arrays(layout, launcher, first);
  const std::array<const T*, 1 + sizeof...(Others)> inputs{arrays.input(first),
                                                           arrays.input(others)...};
  arrays.launch_with_tiling(true, [&](const auto& tiling) {
    using Body = Reduce<std::decay_t<decltype(tiling)>, T, Accumulator>;
    using Result = typename Body::Result;
    const ResultPlaces places = tiling.results();
    Result* results = places.number == 1
                          ? nullptr
                          : new_results<Result>(launcher, places.number * layout.channels);
    Body sums{tiling, {}, statistic, gate, places.columns, results, message};
    std::copy(inputs.begin(), inputs.end(), sums.inputs);
    launcher.launch(sums, tiling.blocks());
    if (!results) return;
    launcher.launch(MergeBlocks<OfResults>{results, places, layout.channels, statistic, message});
  });
}

template <class T>
using Outputs = std::array<Output<T>, 2>;

template <class T>
Output<T> output_of(WriteMode write, T* to) {
  return {to, write == WriteMode::kAdd};
}

/// Computes the output arrays that are not null from inputs of the same shape.
template <class Source, class T, class... Others>
void write_outputs(const Layout& layout, const Source& source, const Outputs<T>& outputs,
                   const Launcher& launcher, const T* first, const Others*... others) {
  if (launcher.is_rehearsal) {
    launcher.load<Elementwise<ChannelFirst, T, Source>, Elementwise<ChannelLast, T, Source>>();
  }
  if ((!outputs[0].to && !outputs[1].to) || layout.is_empty()) return;
  AlignedArrays<T> arrays(layout, launcher, first);
  const std::array<const T*, 1 + sizeof...(Others)> inputs{arrays.input(first),
                                                           arrays.input(others)...};
  const Outputs<T> aligned{arrays.output(outputs[0]), arrays.output(outputs[1])};
  arrays.launch_with_tiling(false, [&](const auto& tiling) {
    const std::int64_t blocks = tiling.blocks();
    Elementwise<std::decay_t<decltype(tiling)>, T, Source> body{
        tiling, static_cast<std::uint32_t>(blocks - 1), {}, source, {}};
    std::copy(inputs.begin(), inputs.end(), body.inputs);
    std::copy_n(aligned.begin(), Source::kOutputs, body.outputs);
    launcher.launch(body, blocks);
  });
}

template <class T>
GateInPlace<Real<T>> gate_in_place(const DzInputs<T>& dz_inputs) {
  return {Inverter<Real<T>>::template of<T>(dz_inputs.activation), dz_inputs.gamma, dz_inputs.beta};
}

}  // namespace

template <class T>
void moments(const T* x, const Layout& layout, const Message& message, const Launcher& launcher) {
  reduce<Deviations>(layout, nullptr, {}, message, launcher, x);
}

template <class T>
void normalize(const T* x, const Layout& layout, const ForwardMerge<Real<T>>& merge,
               WriteMode write, T* y, const Launcher& launcher, const Activated<T>& activated) {
  using R = Real<T>;
  launcher.launch(PerChannel<ForwardMerge<R>>{merge, merge.channels});
  if (merge.averages.num_batches) launcher.launch(PerChannel<CountBatch<R>>{{merge.averages}, 1});
  const Outputs<T> outputs{output_of(write, y)};
  const Normalization<R> plain{{merge.normalizations}};
  const Activator<R> activator(activated.activation);
  if (activated.shortcut) {
    write_outputs(layout, ActivatedNormalization<R, true>{plain, activator}, outputs, launcher, x,
                  activated.shortcut);
  } else if (activated.activation.type != ActType::kNone) {
    write_outputs(layout, ActivatedNormalization<R, false>{plain, activator}, outputs, launcher, x);
  } else {
    write_outputs(layout, plain, outputs, launcher, x);
  }
}

template <class T>
void gradient_sums(const T* dy, const T* x, const Layout& layout, const double* mean,
                   const Message& message, const Launcher& launcher, const DzInputs<T>& dz_inputs) {
  const Activator<Real<T>> activator(dz_inputs.activation);
  if (dz_inputs.inplace) {
    reduce<ProductsInPlace>(layout, dz_inputs.inv_std, gate_in_place(dz_inputs), message, launcher,
                            dy, dz_inputs.y);
  } else if (dz_inputs.activation.type == ActType::kNone) {
    reduce<Products>(layout, mean, {}, message, launcher, dy, x);
  } else if (dz_inputs.y) {
    reduce<ProductsByOutput>(layout, mean, {{}, activator}, message, launcher, dy, x, dz_inputs.y);
  } else {
    reduce<ProductsByInput>(layout, mean, {activator, dz_inputs.normalizations}, message, launcher,
                            dy, x);
  }
}

template <class T>
void input_gradient(const T* dy, const T* x, const Layout& layout,
                    const BackwardMerge<Real<T>>& merge, WriteMode write, T* dx,
                    const Launcher& launcher, const DzInputs<T>& dz_inputs,
                    WriteMode write_shortcut, T* dshortcut) {
  using R = Real<T>;
  BackwardMerge<R> with_gradients = merge;
  with_gradients.beta = dz_inputs.inplace ? dz_inputs.beta : nullptr;
  with_gradients.gradients = new_results<Gradient<R>>(launcher, merge.channels);
  launcher.launch(PerChannel<BackwardMerge<R>>{with_gradients, merge.channels});
  const Outputs<T> outputs{output_of(write, dx), output_of(write_shortcut, dshortcut)};
  const InputGradient<R> plain{{with_gradients.gradients}};
  const Activator<R> activator(dz_inputs.activation);
  const bool is_plain = dz_inputs.activation.type == ActType::kNone;
  if (dz_inputs.inplace) {
    write_outputs(layout, InputGradientInPlace<R>{plain, gate_in_place(dz_inputs)}, outputs,
                  launcher, dy, dz_inputs.y);
  } else if (dshortcut || dz_inputs.y) {
    // Without an activation the slope is 1 on both sides of 0, so any array may stand for y.
    write_outputs(layout, InputGradientByOutput<R>{plain, {{}, activator}}, outputs, launcher, dy,
                  x, is_plain ? dy : dz_inputs.y);
  } else if (is_plain) {
    write_outputs(layout, plain, outputs, launcher, dy, x);
  } else {
    write_outputs(layout, InputGradientByInput<R>{plain, {activator, dz_inputs.normalizations}},
                  outputs, launcher, dy, x);
  }
}

#define GLUON_SYNCBN_INSTANTIATE(T)                                                                \
  template void moments<T>(const T*, const Layout&, const Message&, const Launcher&);              \
  template void normalize<T>(const T*, const Layout&, const ForwardMerge<Real<T>>&, WriteMode, T*, \
                             const Launcher&, const Activated<T>&);                                \
  template void gradient_sums<T>(const T*, const T*, const Layout&, const double*, const Message&, \
                                 const Launcher&, const DzInputs<T>&);                             \
  template void input_gradient<T>(const T*, const T*, const Layout&,                               \
                                  const BackwardMerge<Real<T>>&, WriteMode, T*, const Launcher&,   \
                                  const DzInputs<T>&, WriteMode, T*);
GLUON_SYNCBN_FOR_EACH_DTYPE(GLUON_SYNCBN_INSTANTIATE)
#undef GLUON_SYNCBN_INSTANTIATE

}  // namespace gluon_syncbn::cuda
