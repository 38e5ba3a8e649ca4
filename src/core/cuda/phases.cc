#include "core/cuda/phases.h"

#include <cstdint>
#include <type_traits>

#include "core/cuda/instances.h"
#include "core/cuda/partition.h"

namespace gluon_syncbn::cuda {
namespace {

template <int kNumber>
using Constant = std::integral_constant<int, kNumber>;

/// Elements between an array's first one and the last multiple of 16 bytes before.
template <class T>
int phase_of(const T* array) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(array) % 16 / sizeof(T));
}

/// Calls visit(partition, Constant<elements of an access>()) with the partition for arrays that
/// lie as `first` and all `others` do.
template <class T, class Visit, class... Others>
void with_partition(const Layout& layout, const Visit& visit, const T* first,
                    const Others*... others) {
  const int phase = phase_of(first);
  const bool alike = (... && (phase_of(others) == phase));
  if (has_runs(layout)) {
    if (alike) {
      visit(Runs::of(layout, kWidest<T>, phase), Constant<kWidest<T>>());
    } else {
      visit(Runs::of(layout, 1, 0), Constant<1>());
    }
  } else if (alike && phase == 0) {
    visit(Columns::of(layout, kWidest<T>), Constant<kWidest<T>>());
  } else {
    visit(Columns::of(layout, 1), Constant<1>());
  }
}

bool is_empty(const Layout& layout) { return layout.count() == 0 || layout.channels == 0; }

/// What `Terms` give for the channels of arrays, into `message`.
template <template <class> class Terms, class T, class... Others>
void reduce(const Layout& layout, const double* mean, const Scratch& scratch, double* message,
            Stream* stream, const T* first_array, const Others*... others) {
  if (is_empty(layout)) {
    if (layout.channels > 0) {
      stream->zero(message, 2 * static_cast<std::size_t>(layout.channels) * sizeof(double));
    }
    return;
  }
  with_partition(
      layout,
      [&](const auto& partition, auto vector) {
        using Partition = std::decay_t<decltype(partition)>;
        using Item = typename Terms<Real<T>>::Item;
        // One partial result for each channel is the message.
        const bool alone = partition.items() == 1;
        const std::int64_t items = partition.items_of_all();
        double* first = alone ? message : scratch(static_cast<std::size_t>(2 * items));
        const Sums<Partition, T, decltype(vector)::value, Terms> sums{
            partition, {first_array, others...}, mean, first, first + items};
        launch(sums, partition.blocks(), stream);
        if (alone) return;
        const Merge<Partition, Item> merge{partition, sums.first, sums.second, message};
        launch(merge, merge.blocks(), stream);
      },
      first_array, others...);
}

/// An output array from inputs of the same shape.
template <class Source, class T, class... Others>
void write_output(const Layout& layout, const Source& source, Write write, T* out, Stream* stream,
                  const T* first_array, const Others*... others) {
  if (is_empty(layout)) return;
  with_partition(
      layout,
      [&](const auto& partition, auto vector) {
        using Partition = std::decay_t<decltype(partition)>;
        const Output<Partition, T, decltype(vector)::value, Source> output{
            partition, {first_array, others...}, source, write == Write::kAdd, out};
        launch(output, partition.blocks(), stream);
      },
      first_array, others..., out);
}

}  // namespace

template <class T>
void moments(const T* x, const Layout& layout, const Scratch& scratch, double* message,
             Stream* stream) {
  reduce<Deviations>(layout, nullptr, scratch, message, stream, x);
}

template <class T>
void normalize(const T* x, const Layout& layout, const AffineSource<Real<T>>& source, Write write,
               T* y, Stream* stream) {
  write_output(layout, source, write, y, stream, x);
}

template <class T>
void gradient_sums(const T* dy, const T* x, const Layout& layout, const double* mean,
                   const Scratch& scratch, double* message, Stream* stream) {
  reduce<Products>(layout, mean, scratch, message, stream, dy, x);
}

template <class T>
void input_gradient(const T* dy, const T* x, const Layout& layout,
                    const GradientSource<Real<T>>& source, Write write, T* dx, Stream* stream) {
  write_output(layout, source, write, dx, stream, dy, x);
}

#define GLUON_SYNCBN_INSTANTIATE(T)                                                                \
  template void moments<T>(const T*, const Layout&, const Scratch&, double*, Stream*);             \
  template void normalize<T>(const T*, const Layout&, const AffineSource<Real<T>>&, Write, T*,     \
                             Stream*);                                                             \
  template void gradient_sums<T>(const T*, const T*, const Layout&, const double*, const Scratch&, \
                                 double*, Stream*);                                                \
  template void input_gradient<T>(const T*, const T*, const Layout&,                               \
                                  const GradientSource<Real<T>>&, Write, T*, Stream*);
GLUON_SYNCBN_INSTANTIATE(float)
GLUON_SYNCBN_INSTANTIATE(double)
GLUON_SYNCBN_INSTANTIATE(Half)
#undef GLUON_SYNCBN_INSTANTIATE

}  // namespace gluon_syncbn::cuda
