#include "cpu/kernels.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/simd/isa.h"
#include "cpu/thread_pool.h"
#include "cpu/tuning.h"

namespace gluon_syncbn::cpu {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }
std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

bool is_empty(const Layout& layout) { return layout.count() == 0 || layout.channels == 0; }

/// A view of an array of short runs as a matrix.
///
/// `fold` rows of the array make one row of the matrix, so that few channels still fill the
/// vectors. The remaining rows make a last, shorter row.
class Matrix {
 public:
  Matrix(const Layout& layout, std::int64_t columns, std::int64_t slab)
      : inner_(layout.inner), width_(layout.channels * layout.inner) {
    const std::int64_t fold = width_ < columns ? std::min(columns / width_, layout.outer) : 1;
    columns_ = width_ * fold;
    rows_ = layout.outer / fold;
    rest_ = layout.outer % fold * width_;
    slab_rows_ = std::max(kLeastRows, slab / columns_);
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

  /// The number of parts that threads take. The parts depend on the layout alone, and so do the
  /// results. The last part may be the shorter row.
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

/// Starts with the last parts, which the phase before may have left in the caches.
template <class Visit>
void parallel_backwards(std::int64_t number, const Visit& visit) {
  parallel_for(number, [&](std::int64_t i) { visit(number - 1 - i); });
}

/// Calls visit(begin, extent) for all parts of a matrix.
template <class Visit>
void for_rows_backwards(const Matrix& matrix, const Visit& visit) {
  parallel_backwards(matrix.number(), [&](std::int64_t i) { visit(matrix.begin(i), matrix[i]); });
}

/// Asks the system for huge pages. The first write to each new page causes a page fault, which
/// takes longer than to compute the 4 KiB of a normal page. A huge page has 2 MiB.
void prefer_huge_pages(void* begin, std::int64_t bytes) {
#ifdef MADV_HUGEPAGE
  constexpr std::uintptr_t kHugePage = 2 << 20;
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  const std::uintptr_t first = (address + kHugePage - 1) / kHugePage * kHugePage;
  const std::uintptr_t end = (address + static_cast<std::uintptr_t>(bytes)) / kHugePage * kHugePage;
  // The result does not matter: without huge pages the array only takes longer to write.
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#else
  static_cast<void>(begin);
  static_cast<void>(bytes);
#endif
}

/// Arrays of numbers per channel, rounded to R, for the kernels. If there is a matrix, the arrays
/// have one number per column of it.
template <class R>
class Parameters {
 public:
  /// Makes room for `number` arrays.
  Parameters(Channels channels, const Layout& layout, const Matrix* matrix, std::size_t number)
      : channels_(channels),
        repeat_(matrix ? index(layout.inner) : 1),
        size_(index(matrix ? matrix->columns() : channels.end - channels.begin)),
        numbers_(number * size_of_one() + kLine) {}
  Parameters(Parameters&&) = default;  // no copies: offset() depends on the address

  /// Adds an array of value(channel).
  template <class Value>
  void add(const Value& value) {
    R* const begin = numbers_.data() + offset() + added_++ * size_of_one();
    R* end = begin;
    for (auto c = channels_.begin; c < channels_.end; ++c) {
      end = std::fill_n(end, repeat_, static_cast<R>(value(index(c))));
    }
    for (const R* from = begin; end < begin + size_; ++from) *end++ = *from;
  }
  /// Adds the arrays of NormalizationArrays; only the center if the kernel does not compute z. In
  /// place there is no x, so that rounding the mean leaves no rest.
  template <class T>
  void add_normalization(const Affine<T>& n, bool looks_at_z, bool in_place) {
    add([&](std::size_t c) { return n.mean[c]; });
    if (!looks_at_z) return;
    add([&](std::size_t c) { return in_place ? 1 / n.scale(c) : n.scale(c); });
    add([&](std::size_t c) {
      const auto shift = static_cast<double>(n.beta[c]);
      return in_place ? shift : shift - rest_of<R>(n.mean[c]) * n.scale(c);
    });
  }

  /// Returns three arrays, beginning with the one that was added after `first` others. Arrays that
  /// were not added are null.
  NormalizationArrays<R> normalization(std::size_t first = 0) const {
    return {at(first), at(first + 1), at(first + 2)};
  }
  InputGradientArrays<R> gradient() const { return {at(0), at(1), at(2)}; }

 private:
  /// The elements of a cache line. A vector that lies across two lines takes longer to load.
  static constexpr std::size_t kLine = 64 / sizeof(R);

  /// The size of an array, rounded up to whole cache lines.
  std::size_t size_of_one() const { return (size_ + kLine - 1) / kLine * kLine; }
  /// Where the first cache line begins. Older C++ libraries have no aligned allocation.
  std::size_t offset() const {
    const auto address = reinterpret_cast<std::uintptr_t>(numbers_.data()) / sizeof(R);
    return (kLine - address % kLine) % kLine;
  }
  const R* at(std::size_t i) const {
    return i < added_ ? numbers_.data() + offset() + i * size_of_one() : nullptr;
  }

  const Channels channels_;
  const std::size_t repeat_;
  const std::size_t size_;
  std::vector<R> numbers_;
  std::size_t added_ = 0;
};

/// Whether a backward kernel computes z.
template <class T>
bool looks_at_z(const T* x, const Gate<T>& gate) {
  return !x || (gate.activation.type != ActType::kNone && !gate.y);
}

template <class R, class T>
Parameters<R> parameters_of(const Affine<T>& n, bool looks_at_z, bool in_place, Channels channels,
                            const Layout& layout, const Matrix* matrix) {
  Parameters<R> values(channels, layout, matrix, 3);
  values.add_normalization(n, looks_at_z, in_place);
  return values;
}

template <class T, class R = Real<T>>
Parameters<R> parameters_of_gradient(const Affine<T>& n, const Gate<T>& gate, const T* x,
                                     const GradientSums* sums, double count, Channels channels,
                                     const Layout& layout, const Matrix* matrix) {
  const auto share = [&](std::size_t c) { return -n.scale(c) / count; };
  const auto x_factor = [&](std::size_t c) {
    return sums ? share(c) * sums->dy_centered[c] * n.inv_std[c] * n.inv_std[c] : 0;
  };
  Parameters<R> values(channels, layout, matrix, 6);
  values.add([&](std::size_t c) { return n.scale(c); });
  values.add(x_factor);
  values.add([&](std::size_t c) {
    const double constant = sums ? share(c) * sums->dy[c] : 0;
    return x ? constant - rest_of<R>(n.mean[c]) * x_factor(c) : constant;
  });
  values.add_normalization(n, looks_at_z(x, gate), !x);
  return values;
}

/// Returns array + offset; null if the array is null.
template <class T>
const T* moved(const T* array, std::int64_t offset) {
  return array ? array + offset : nullptr;
}

/// Two sums for each column of each part of a matrix.
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
                              const Kernels<T>& kernels, const Parameters<double>& values,
                              const Gate<T>& gate, GradientSums* result) {
  ColumnSums sums(matrix);
  parallel_for(matrix.number(), [&](std::int64_t i) {
    const std::int64_t begin = matrix.begin(i);
    kernels.column_gradient_sums(dy + begin, moved(x, begin), moved(gate.y, begin), matrix[i],
                                 values.normalization(), gate.activation, sums.first_of(i),
                                 sums.second_of(i));
  });
  const std::vector<std::size_t> channels = matrix.channels();
  for (std::int64_t part = 0; part < matrix.number(); ++part) {
    for (std::int64_t column = 0; column < matrix[part].columns; ++column) {
      const std::size_t c = channels[index(column)];
      result->dy[c] += sums.first_of(part)[column];
      result->dy_centered[c] += sums.second_of(part)[column];
    }
  }
}

/// The range that a kernel gets whose arrays already begin with the first of `channels`.
Channels first_channels(Channels channels) { return {0, channels.end - channels.begin}; }

}  // namespace

bool has_runs(const Layout& layout) { return layout.inner >= kShortInner; }

void for_each_part(const std::vector<Layout>& layouts, const std::function<void(Channels)>& visit) {
  const std::int64_t channels = layouts.front().channels;
  if (!std::all_of(layouts.begin(), layouts.end(), has_runs)) return visit({0, channels});
  std::int64_t count = 0;
  for (const Layout& layout : layouts) count += layout.count();
  const std::int64_t fair = channels * count / (kPartsOfThread * num_threads());
  const std::int64_t grain = std::clamp(fair, kLeastGrain, kMostGrain);
  const std::int64_t each = std::max<std::int64_t>(1, grain / std::max<std::int64_t>(1, count));
  parallel_for(divide_up(channels, each),
               [&](std::int64_t i) { visit({i * each, std::min(channels, (i + 1) * each)}); });
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
void moments(const T* x, const Layout& layout, Channels channels, Moments* result) {
  if (is_empty(layout)) return;
  const Kernels<T>& kernels = kernels_in_use<T>();
  if (has_runs(layout)) {
    kernels.run_moments(x, layout, channels, result->mean.data(), result->m2.data());
  } else {
    moments_of_columns(x, Matrix(layout, kSumColumns, kSlab), kernels, result);
  }
}

template <class T>
void normalize(const T* x, const Layout& layout, Channels channels, const Affine<T>& n,
               const Activation& activation, StoreMode store, T* y, const T* shortcut) {
  if (is_empty(layout)) return;
  const Kernels<T>& kernels = kernels_in_use<T>();
  if (has_runs(layout)) {
    const auto values = parameters_of<Real<T>>(n, true, false, channels, layout, nullptr);
    const std::int64_t first = channels.begin * layout.inner;
    kernels.run_normalize(x + first, moved(shortcut, first), layout, first_channels(channels),
                          values.normalization(), activation, store, y + first);
    return;
  }
  const Matrix matrix(layout, kOutputColumns, kGrain);
  const auto values = parameters_of<Real<T>>(n, true, false, channels, layout, &matrix);
  for_rows_backwards(matrix, [&](std::int64_t begin, Extent extent) {
    kernels.column_normalize(x + begin, moved(shortcut, begin), extent, values.normalization(),
                             activation, store, y + begin);
  });
}

template <class T>
void gradient_sums(const T* dy, const T* x, const Layout& layout, Channels channels,
                   const Affine<T>& n, const Gate<T>& gate, GradientSums* result) {
  if (is_empty(layout)) return;
  const Kernels<T>& kernels = kernels_in_use<T>();
  const bool with_z = looks_at_z(x, gate);
  if (has_runs(layout)) {
    const auto values = parameters_of<double>(n, with_z, !x, channels, layout, nullptr);
    const std::int64_t first = channels.begin * layout.inner;
    kernels.run_gradient_sums(dy + first, moved(x, first), moved(gate.y, first), layout,
                              first_channels(channels), values.normalization(), gate.activation,
                              result->dy.data() + channels.begin,
                              result->dy_centered.data() + channels.begin);
    return;
  }
  const Matrix matrix(layout, kSumColumns, kSlab);
  const auto values = parameters_of<double>(n, with_z, !x, channels, layout, &matrix);
  gradient_sums_of_columns(dy, x, matrix, kernels, values, gate, result);
}

template <class T>
void input_gradient(const T* dy, const T* x, const Layout& layout, Channels channels,
                    const Affine<T>& n, const Gate<T>& gate, const GradientSums* sums, double count,
                    StoreMode store, T* dx) {
  if (is_empty(layout)) return;
  const Kernels<T>& kernels = kernels_in_use<T>();
  constexpr std::size_t kAfterGradient = 3;
  if (has_runs(layout)) {
    const auto values = parameters_of_gradient(n, gate, x, sums, count, channels, layout, nullptr);
    const std::int64_t first = channels.begin * layout.inner;
    kernels.run_input_gradient(dy + first, moved(x, first), moved(gate.y, first), layout,
                               first_channels(channels), values.normalization(kAfterGradient),
                               values.gradient(), gate.activation, store, dx + first);
    return;
  }
  const Matrix matrix(layout, kOutputColumns, kGrain);
  const auto values = parameters_of_gradient(n, gate, x, sums, count, channels, layout, &matrix);
  for_rows_backwards(matrix, [&](std::int64_t begin, Extent extent) {
    kernels.column_input_gradient(dy + begin, moved(x, begin), moved(gate.y, begin), extent,
                                  values.normalization(kAfterGradient), values.gradient(),
                                  gate.activation, store, dx + begin);
  });
}

template <class T>
void shortcut_gradient(const T* dy, const Layout& layout, Channels channels, const Gate<T>& gate,
                       StoreMode store, T* dz) {
  if (is_empty(layout)) return;
  const T* y = gate.y ? gate.y : dy;  // Without an activation y is not used, but must not be null.
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
  // One long run, because the channels do not matter.
  const std::int64_t number = layout.count() * layout.channels;
  parallel_backwards(divide_up(number, kLeastGrain), [&](std::int64_t i) {
    compute(i * kLeastGrain, std::min(kLeastGrain, number - i * kLeastGrain));
  });
}

#define GLUON_SYNCBN_INSTANTIATE(T)                                                                \
  template StoreMode prepare_output<T>(WriteMode, const Layout&, T*);                              \
  template void moments<T>(const T*, const Layout&, Channels, Moments*);                           \
  template void normalize<T>(const T*, const Layout&, Channels, const Affine<T>&,                  \
                             const Activation&, StoreMode, T*, const T*);                          \
  template void gradient_sums<T>(const T*, const T*, const Layout&, Channels, const Affine<T>&,    \
                                 const Gate<T>&, GradientSums*);                                   \
  template void input_gradient<T>(const T*, const T*, const Layout&, Channels, const Affine<T>&,   \
                                  const Gate<T>&, const GradientSums*, double, StoreMode, T*);     \
  template void shortcut_gradient<T>(const T*, const Layout&, Channels, const Gate<T>&, StoreMode, \
                                     T*);
GLUON_SYNCBN_FOR_EACH_DTYPE(GLUON_SYNCBN_INSTANTIATE)
#undef GLUON_SYNCBN_INSTANTIATE

}  // namespace gluon_syncbn::cpu
