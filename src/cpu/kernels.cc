#include "cpu/kernels.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/simd/isa.h"
#include "cpu/thread_pool.h"

namespace gluon_syncbn::cpu {
namespace {

// Below this many contiguous elements per channel, rows of channels are faster to walk.
constexpr std::int64_t kShortInner = 16;
// Shorter rows are taken several at a time: for sums, which are kept for every column, and for
// outputs.
constexpr std::int64_t kSumColumns = 128;
constexpr std::int64_t kOutputColumns = 512;
// Elements of a matrix that a thread takes at a time for outputs.
constexpr std::int64_t kGrain = 32768;
// Elements of channels with runs that a thread takes at a time: the more lie side by side, the
// better for the memory, until the private cache of a core is full. But every thread should find a
// few parts.
constexpr std::int64_t kLeastGrain = 65536;
constexpr std::int64_t kMostGrain = 262144;
constexpr std::int64_t kPartsOfThread = 4;
// Elements of a matrix whose columns are summed up in one go, and the number of sums that this must
// be larger than by far.
constexpr std::int64_t kSlab = 131072;
constexpr std::int64_t kRowsPerColumn = 128;
// Bytes of an output that is written past the caches, which do not keep as much until it is used
// again, and of which it pays to say that it is large. Less than half of it must then be in pieces
// of cache lines.
constexpr std::int64_t kLargeBytes = 4 << 20;
constexpr std::int64_t kStreamRunBytes = 1024;

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }
std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

bool is_empty(const Layout& layout) { return layout.count() == 0 || layout.channels == 0; }

/// An array of short runs as a matrix. `fold` rows of the array make one row of the matrix, so that
/// vectors are full however few channels there are; the rest of the rows make a last, shorter row.
class Matrix {
 public:
  Matrix(const Layout& layout, std::int64_t columns, std::int64_t slab)
      : inner_(layout.inner), width_(layout.channels * layout.inner) {
    const std::int64_t fold = width_ < columns ? std::min(columns / width_, layout.outer) : 1;
    columns_ = width_ * fold;
    rows_ = layout.outer / fold;
    rest_ = layout.outer % fold * width_;
    slab_rows_ = std::max(kRowsPerColumn, slab / columns_);
  }

  std::int64_t columns() const { return columns_; }

  /// The channel of every column.
  std::vector<std::size_t> channels() const {
    std::vector<std::size_t> of_columns;
    of_columns.reserve(index(columns_));
    while (of_columns.size() < index(columns_)) {
      for (std::int64_t c = 0; c < width_ / inner_; ++c) {
        of_columns.insert(of_columns.end(), index(inner_), index(c));
      }
    }
    return of_columns;
  }

  /// Parts that threads take: they depend on the layout alone, and so do the results. The last may
  /// be the shorter row.
  std::int64_t number() const { return divide_up(rows_, slab_rows_) + (rest_ ? 1 : 0); }
  std::int64_t begin(std::int64_t i) const { return std::min(i * slab_rows_, rows_) * columns_; }
  Extent operator[](std::int64_t i) const {
    const std::int64_t rows = std::min(slab_rows_, rows_ - i * slab_rows_);
    return rows > 0 ? Extent{rows, columns_} : Extent{1, rest_};
  }

 private:
  std::int64_t inner_;
  std::int64_t width_;
  std::int64_t columns_;
  std::int64_t rows_;
  std::int64_t rest_;
  std::int64_t slab_rows_;
};

/// The last parts first: what the pass before this one touched last may still be in cache.
template <class Visit>
void parallel_backwards(std::int64_t number, const Visit& visit) {
  parallel_for(number, [&](std::int64_t i) { visit(number - 1 - i); });
}

/// Calls visit(begin, extent) for all parts of a matrix.
template <class Visit>
void for_rows_backwards(const Matrix& matrix, const Visit& visit) {
  parallel_backwards(matrix.number(), [&](std::int64_t i) { visit(matrix.begin(i), matrix[i]); });
}

/// Lets the system back a large array by huge pages. Memory that is new to the process costs a page
/// fault for every page, which takes longer than computing what goes into it; here that is one for
/// 2 MiB, not for 4 KiB.
void prefer_huge_pages(void* begin, std::int64_t bytes) {
#ifdef MADV_HUGEPAGE
  constexpr std::uintptr_t kHugePage = 2 << 20;
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  const std::uintptr_t first = (address + kHugePage - 1) / kHugePage * kHugePage;
  const std::uintptr_t end = (address + static_cast<std::uintptr_t>(bytes)) / kHugePage * kHugePage;
  // A wish: where the system does not grant it, all goes on as it would.
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#else
  static_cast<void>(begin);
  static_cast<void>(bytes);
#endif
}

/// Numbers per channel in the precision of the arithmetic, repeated for every column of a matrix.
template <class R>
class Parameters {
 public:
  /// Room for `number` of them for `channels` channels.
  Parameters(std::size_t channels, const Layout& layout, const Matrix* matrix, std::size_t number)
      : channels_(channels),
        repeat_(matrix ? index(layout.inner) : 1),
        size_(matrix ? index(matrix->columns()) : channels_) {
    values_.reserve(size_ * number);
  }

  template <class Value>
  void add(const Value& value) {
    const std::size_t begin = values_.size();
    for (std::size_t c = 0; c < channels_; ++c) {
      values_.insert(values_.end(), repeat_, static_cast<R>(value(c)));
    }
    // In place, so that nothing moves: the constructor has reserved it.
    for (std::size_t i = begin; values_.size() < begin + size_; ++i) values_.push_back(values_[i]);
  }

  /// Null if that has not been added.
  const R* operator[](std::size_t i) const {
    return i * size_ < values_.size() ? values_.data() + i * size_ : nullptr;
  }

 private:
  const std::size_t channels_;
  const std::size_t repeat_;
  const std::size_t size_;
  std::vector<R> values_;
};

template <class R>
Parameters<R> parameters_of(const Normalization& n, const Layout& layout, const Matrix* matrix) {
  Parameters<R> values(n.mean.size(), layout, matrix, 3);
  values.add([&](std::size_t c) { return n.mean[c]; });
  values.add([&](std::size_t c) { return n.scale[c]; });
  values.add([&](std::size_t c) { return n.shift[c] - rest_of<R>(n.mean[c]) * n.scale[c]; });
  return values;
}

template <class R>
NormalizationArrays<R> arrays_of_normalization(const Parameters<R>& values) {
  return {values[0], values[1], values[2]};
}

/// Of the gradient, and of the normalization if the gate looks at that; its first channel is
/// `first`. In place there is no x whose distance from a rounded mean would leave a rest.
template <class T, class R = Real<T>>
Parameters<R> parameters_of(const InputGradient& g, const Gate<T>& gate, bool in_place,
                            std::size_t first, const Layout& layout, const Matrix* matrix) {
  const auto rest = [&](std::size_t c) { return in_place ? 0 : rest_of<R>(g.mean[c]); };
  Parameters<R> values(g.mean.size(), layout, matrix, 6);
  values.add([&](std::size_t c) { return g.mean[c]; });
  values.add([&](std::size_t c) { return g.dy_factor[c]; });
  values.add([&](std::size_t c) { return g.x_factor[c]; });
  values.add([&](std::size_t c) { return g.constant[c] - rest(c) * g.x_factor[c]; });
  if (gate.scale.empty()) return values;
  values.add([&](std::size_t c) { return gate.scale[first + c]; });
  values.add(
      [&](std::size_t c) { return gate.shift[first + c] - rest(c) * gate.scale[first + c]; });
  return values;
}

template <class R>
NormalizationArrays<R> arrays_of_gate(const Parameters<R>& values) {
  return {values[0], values[4], values[5]};
}

template <class R>
InputGradientArrays<R> arrays_of_gradient(const Parameters<R>& values) {
  return {values[1], values[2], values[3]};
}

/// An array that may be missing, moved like the others; null stays null.
template <class T>
const T* moved(const T* array, std::int64_t offset) {
  return array ? array + offset : nullptr;
}

/// Sums of the columns of all parts of a matrix.
struct ColumnSums {
  ColumnSums(const Matrix& matrix)
      : columns(matrix.columns()),
        first(index(matrix.number() * columns)),
        second(index(matrix.number() * columns)) {}

  double* first_of(std::int64_t part) { return first.data() + part * columns; }
  double* second_of(std::int64_t part) { return second.data() + part * columns; }

  std::int64_t columns;
  std::vector<double> first;
  std::vector<double> second;
};

template <class T>
void moments_of_columns(const T* x, const Matrix& matrix, const Kernels<T>& kernels,
                        Moments* result) {
  ColumnSums sums(matrix);
  parallel_for(matrix.number(), [&](std::int64_t i) {
    kernels.column_moments(x + matrix.begin(i), matrix[i], sums.first_of(i), sums.second_of(i));
  });
  const std::vector<std::size_t> channels = matrix.channels();
  std::vector<std::int64_t> counts(result->mean.size());
  for (std::int64_t part = 0; part < matrix.number(); ++part) {
    const Extent extent = matrix[part];
    for (std::int64_t column = 0; column < extent.columns; ++column) {
      const std::size_t c = channels[index(column)];
      MergeWeight::of(counts[c], extent.rows)
          .merge(sums.first_of(part)[column], sums.second_of(part)[column], &result->mean[c],
                 &result->m2[c]);
      counts[c] += extent.rows;
    }
  }
}

template <class T>
void gradient_sums_of_columns(const T* dy, const T* x, const Matrix& matrix,
                              const Kernels<T>& kernels, const std::vector<double>& mean,
                              const Gate<T>& gate, GradientSums* result) {
  ColumnSums sums(matrix);
  const std::vector<std::size_t> channels = matrix.channels();
  const auto of_columns = [&](const std::vector<double>& numbers) {
    std::vector<double> values;
    if (numbers.empty()) return values;
    values.reserve(channels.size());
    for (const std::size_t c : channels) values.push_back(numbers[c]);
    return values;
  };
  const auto center = of_columns(mean), scale = of_columns(gate.scale),
             shift = of_columns(gate.shift);
  const NormalizationArrays<double> arrays{center.data(), scale.data(), shift.data()};
  parallel_for(matrix.number(), [&](std::int64_t i) {
    const std::int64_t begin = matrix.begin(i);
    kernels.column_gradient_sums(dy + begin, moved(x, begin), moved(gate.y, begin), matrix[i],
                                 arrays, gate.activation, sums.first_of(i), sums.second_of(i));
  });
  for (std::int64_t part = 0; part < matrix.number(); ++part) {
    for (std::int64_t column = 0; column < matrix[part].columns; ++column) {
      const std::size_t c = channels[index(column)];
      result->dy[c] += sums.first_of(part)[column];
      result->dy_centered[c] += sums.second_of(part)[column];
    }
  }
}

/// The runs of these channels as a kernel takes them whose arrays begin with the first of them in
/// the first row.
ChannelRange first_channels(ChannelRange channels) { return {0, channels.end - channels.begin}; }

}  // namespace

bool has_runs(const Layout& layout) { return layout.inner >= kShortInner; }

ChannelParts::ChannelParts(const Layout& layout, std::int64_t count) : channels_(layout.channels) {
  if (!has_runs(layout)) {
    each_ = std::max<std::int64_t>(1, channels_);
    return;
  }
  const std::int64_t fair = channels_ * count / (kPartsOfThread * num_threads());
  const std::int64_t grain = std::clamp(fair, kLeastGrain, kMostGrain);
  each_ = std::max<std::int64_t>(1, grain / std::max<std::int64_t>(1, count));
}

ChannelRange ChannelParts::operator[](std::int64_t i) const {
  return {i * each_, std::min(channels_, (i + 1) * each_)};
}

void ChannelParts::for_each(const std::function<void(ChannelRange)>& visit) const {
  // What has one part only, as arrays without runs, is divided up where it is computed.
  if (number() == 1) return visit((*this)[0]);
  parallel_for(number(), [&](std::int64_t i) { visit((*this)[i]); });
}

void ChannelParts::for_each_backwards(const std::function<void(ChannelRange)>& visit) const {
  if (number() == 1) return visit((*this)[0]);
  parallel_backwards(number(), [&](std::int64_t i) { visit((*this)[i]); });
}

template <class T>
StoreMode prepare_output(WriteMode write, const Layout& layout, T* out) {
  if (write == WriteMode::kAdd) return StoreMode::kAdd;
  constexpr auto size = static_cast<std::int64_t>(sizeof(T));
  const std::int64_t bytes = layout.count() * layout.channels * size;
  if (bytes < kLargeBytes) return StoreMode::kAssign;
  prefer_huge_pages(out, bytes);
  const std::int64_t run =
      has_runs(layout) ? layout.inner : Matrix(layout, kOutputColumns, kGrain).columns();
  return run * size >= kStreamRunBytes ? StoreMode::kStream : StoreMode::kAssign;
}

template <class T>
void moments(const T* x, const Layout& layout, ChannelRange channels, Moments* result) {
  if (is_empty(layout)) return;
  const Kernels<T>& kernels = kernels_in_use<T>();
  if (has_runs(layout)) {
    kernels.run_moments(x, layout, channels, result->mean.data(), result->m2.data());
  } else {
    moments_of_columns(x, Matrix(layout, kSumColumns, kSlab), kernels, result);
  }
}

template <class T>
void normalize(const T* x, const Layout& layout, ChannelRange channels, const Normalization& n,
               StoreMode store, T* y, const T* shortcut) {
  if (is_empty(layout)) return;
  const Kernels<T>& kernels = kernels_in_use<T>();
  if (has_runs(layout)) {
    const auto values = parameters_of<Real<T>>(n, layout, nullptr);
    const std::int64_t first = channels.begin * layout.inner;
    kernels.run_normalize(x + first, moved(shortcut, first), layout, first_channels(channels),
                          arrays_of_normalization(values), n.activation, store, y + first);
    return;
  }
  const Matrix matrix(layout, kOutputColumns, kGrain);
  const auto values = parameters_of<Real<T>>(n, layout, &matrix);
  for_rows_backwards(matrix, [&](std::int64_t begin, Extent extent) {
    kernels.column_normalize(x + begin, moved(shortcut, begin), extent,
                             arrays_of_normalization(values), n.activation, store, y + begin);
  });
}

template <class T>
void gradient_sums(const T* dy, const T* x, const Layout& layout, ChannelRange channels,
                   const std::vector<double>& mean, GradientSums* result, const Gate<T>& gate) {
  if (is_empty(layout)) return;
  const Kernels<T>& kernels = kernels_in_use<T>();
  if (has_runs(layout)) {
    kernels.run_gradient_sums(dy, x, gate.y, layout, channels,
                              {mean.data(), gate.scale.data(), gate.shift.data()}, gate.activation,
                              result->dy.data(), result->dy_centered.data());
  } else {
    gradient_sums_of_columns(dy, x, Matrix(layout, kSumColumns, kSlab), kernels, mean, gate,
                             result);
  }
}

template <class T>
void input_gradient(const T* dy, const T* x, const Layout& layout, ChannelRange channels,
                    const InputGradient& g, StoreMode store, T* dx, const Gate<T>& gate) {
  if (is_empty(layout)) return;
  const Kernels<T>& kernels = kernels_in_use<T>();
  if (has_runs(layout)) {
    const auto values = parameters_of(g, gate, !x, index(channels.begin), layout, nullptr);
    const std::int64_t first = channels.begin * layout.inner;
    kernels.run_input_gradient(dy + first, moved(x, first), moved(gate.y, first), layout,
                               first_channels(channels), arrays_of_gate(values),
                               arrays_of_gradient(values), gate.activation, store, dx + first);
    return;
  }
  const Matrix matrix(layout, kOutputColumns, kGrain);
  const auto values = parameters_of(g, gate, !x, 0, layout, &matrix);
  for_rows_backwards(matrix, [&](std::int64_t begin, Extent extent) {
    kernels.column_input_gradient(dy + begin, moved(x, begin), moved(gate.y, begin), extent,
                                  arrays_of_gate(values), arrays_of_gradient(values),
                                  gate.activation, store, dx + begin);
  });
}

template <class T>
void shortcut_gradient(const T* dy, const Layout& layout, ChannelRange channels, StoreMode store,
                       T* dz, const Gate<T>& gate) {
  if (is_empty(layout)) return;
  const T* y = gate.y ? gate.y : dy;  // without an activation it tells nothing
  const auto compute = [&](std::int64_t begin, std::int64_t number) {
    kernels_in_use<T>().shortcut_gradient(dy + begin, y + begin, number, gate.activation, store,
                                          dz + begin);
  };
  if (has_runs(layout)) {
    const std::int64_t number = (channels.end - channels.begin) * layout.inner;
    for (std::int64_t outer = 0; outer < layout.outer; ++outer) {
      compute((outer * layout.channels + channels.begin) * layout.inner, number);
    }
    return;
  }
  // As one long run, whatever its channels.
  const std::int64_t number = layout.count() * layout.channels;
  parallel_backwards(divide_up(number, kLeastGrain), [&](std::int64_t i) {
    compute(i * kLeastGrain, std::min(kLeastGrain, number - i * kLeastGrain));
  });
}

#define GLUON_SYNCBN_INSTANTIATE(T)                                                          \
  template StoreMode prepare_output<T>(WriteMode, const Layout&, T*);                        \
  template void moments<T>(const T*, const Layout&, ChannelRange, Moments*);                 \
  template void normalize<T>(const T*, const Layout&, ChannelRange, const Normalization&,    \
                             StoreMode, T*, const T*);                                       \
  template void gradient_sums<T>(const T*, const T*, const Layout&, ChannelRange,            \
                                 const std::vector<double>&, GradientSums*, const Gate<T>&); \
  template void input_gradient<T>(const T*, const T*, const Layout&, ChannelRange,           \
                                  const InputGradient&, StoreMode, T*, const Gate<T>&);      \
  template void shortcut_gradient<T>(const T*, const Layout&, ChannelRange, StoreMode, T*,   \
                                     const Gate<T>&);
GLUON_SYNCBN_FOR_EACH_DTYPE(GLUON_SYNCBN_INSTANTIATE)
#undef GLUON_SYNCBN_INSTANTIATE

}  // namespace gluon_syncbn::cpu
