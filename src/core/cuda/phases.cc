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

/// Puts the kernel of a pass on the stream, and the one that merges its items where there are
/// several for a channel; one alone is the message.
template <class Partition, class Pass, class Merge>
void reduce(const Partition& partition, const Scratch& scratch, double* message, const Pass& pass,
            const Merge& merge) {
  if (partition.items() == 1) {
    pass(message, message + partition.channels);
    return;
  }
  const std::int64_t items = partition.items_of_all();
  double* first = scratch(static_cast<std::size_t>(2 * items));
  double* second = first + items;
  pass(first, second);
  merge(first, second);
}

void zero_message(const Layout& layout, double* message, Stream* stream) {
  if (layout.channels > 0) {
    stream->zero(message, 2 * static_cast<std::size_t>(layout.channels) * sizeof(double));
  }
}

}  // namespace

template <class T>
void moments(const T* x, const Layout& layout, const Scratch& scratch, double* message,
             Stream* stream) {
  if (is_empty(layout)) return zero_message(layout, message, stream);
  with_partition(
      layout,
      [&](const auto& partition, auto vector) {
        using Partition = std::decay_t<decltype(partition)>;
        constexpr int kVector = decltype(vector)::value;
        reduce(
            partition, scratch, message,
            [&](double* mean, double* m2) {
              if constexpr (std::is_same_v<Partition, Runs>) {
                launch(RunMoments<T, kVector>{partition, x, mean, m2}, partition.blocks(), stream);
              } else {
                launch(ColumnMoments<T, kVector>{partition, x, mean, m2}, partition.blocks(),
                       stream);
              }
            },
            [&](const double* mean, const double* m2) {
              const MergeMoments<Partition> merge{partition, mean, m2, message,
                                                  message + layout.channels};
              launch(merge, merge.blocks(), stream);
            });
      },
      x);
}

template <class T>
void normalize(const T* x, const Layout& layout, const AffineSource<Real<T>>& source, Write write,
               T* y, Stream* stream) {
  if (is_empty(layout)) return;
  const bool add = write == Write::kAdd;
  with_partition(
      layout,
      [&](const auto& partition, auto vector) {
        constexpr int kVector = decltype(vector)::value;
        if constexpr (std::is_same_v<std::decay_t<decltype(partition)>, Runs>) {
          launch(RunNormalize<T, kVector>{partition, x, source, add, y}, partition.blocks(),
                 stream);
        } else {
          launch(ColumnNormalize<T, kVector>{partition, x, source, add, y}, partition.blocks(),
                 stream);
        }
      },
      x, y);
}

template <class T>
void gradient_sums(const T* dy, const T* x, const Layout& layout, const double* mean,
                   const Scratch& scratch, double* message, Stream* stream) {
  if (is_empty(layout)) return zero_message(layout, message, stream);
  with_partition(
      layout,
      [&](const auto& partition, auto vector) {
        using Partition = std::decay_t<decltype(partition)>;
        constexpr int kVector = decltype(vector)::value;
        reduce(
            partition, scratch, message,
            [&](double* sum, double* centered) {
              if constexpr (std::is_same_v<Partition, Runs>) {
                launch(RunGradientSums<T, kVector>{partition, dy, x, mean, sum, centered},
                       partition.blocks(), stream);
              } else {
                launch(ColumnGradientSums<T, kVector>{partition, dy, x, mean, sum, centered},
                       partition.blocks(), stream);
              }
            },
            [&](const double* sum, const double* centered) {
              const MergeSums<Partition> merge{partition, sum, centered, message,
                                               message + layout.channels};
              launch(merge, merge.blocks(), stream);
            });
      },
      x, dy);
}

template <class T>
void input_gradient(const T* dy, const T* x, const Layout& layout,
                    const GradientSource<Real<T>>& source, Write write, T* dx, Stream* stream) {
  if (is_empty(layout)) return;
  const bool add = write == Write::kAdd;
  with_partition(
      layout,
      [&](const auto& partition, auto vector) {
        constexpr int kVector = decltype(vector)::value;
        if constexpr (std::is_same_v<std::decay_t<decltype(partition)>, Runs>) {
          launch(RunInputGradient<T, kVector>{partition, dy, x, source, add, dx},
                 partition.blocks(), stream);
        } else {
          launch(ColumnInputGradient<T, kVector>{partition, dy, x, source, add, dx},
                 partition.blocks(), stream);
        }
      },
      x, dy, dx);
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
