#include "cpu/kernels.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "cpu/simd/isa.h"
#include "cpu/thread_pool.h"
#include "cpu/tuning.h"
#include "norm/coefficients.h"
#include "norm/merge_weight.h"
#include "norm/variants.h"

namespace gluon_syncbn::cpu {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/// A view of an array of short runs as a matrix.
///
/// `fold` rows of the array make one row of the matrix, so that few channels still fill the
/// vectors. Without this, 64 channels take 1.2 to 1.3 of the time. The remaining rows make a last,
/// shorter row.
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

/// Calls visit(begin, extent) for all parts of a matrix. Starts with the last parts, which the
/// phase before may have left in the caches.
template <class Visit>
void for_rows_backwards(const Matrix& matrix, const Visit& visit) {
  parallel_for(matrix.number(), [&](std::int64_t i) {
    const std::int64_t part = matrix.number() - 1 - i;
    visit(matrix.begin(part), matrix[part]);
  });
}

/// Asks the system for huge pages. The first write to each new page causes a page fault, which
/// takes longer than to compute the 4 KiB of a normal page. A huge page has 2 MiB.
void prefer_huge_pages([[maybe_unused]] void* begin, [[maybe_unused]] std::int64_t bytes) {
#ifdef MADV_HUGEPAGE
  constexpr std::uintptr_t kHugePage = 2 << 20;
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  const std::uintptr_t first = (address + kHugePage - 1) / kHugePage * kHugePage;
  const std::uintptr_t end = (address + static_cast<std::uintptr_t>(bytes)) / kHugePage * kHugePage;
  // The result does not matter: without huge pages the array only takes longer to write.
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#endif
}

/// Makes arrays of the coefficients of channels, for the kernels. If there is a matrix, the arrays
/// have one number per column of it.
template <class R>
class Arrays {
 public:
  Arrays(Channels channels, const Layout& layout, const Matrix* matrix)
      : channels_(channels),
        repeat_(matrix ? layout.inner : 1),
        size_(matrix ? matrix->columns() : channels.number()) {}

  /// Returns arrays of of_channel(c), which live as long as this object.
  template <template <class> class Coefficients, class OfChannel>
  Coefficients<const R*> make(const OfChannel& of_channel) {
    const Coefficients<R*> arrays = Coefficients<R>{}.map([this](R) { return allocate(); });
    std::int64_t end = 0;
    for (auto c = channels_.begin; c < channels_.end; ++c, end += repeat_) {
      const Coefficients<R> coefficients = of_channel(c);
      coefficients.map([&](R each, R* array) { return std::fill_n(array + end, repeat_, each); },
                       arrays);
    }
    // A row of the matrix may have several rows of the array, with the same channels.
    return arrays.map([&](R* array) -> const R* {
      for (std::int64_t i = end; i < size_; ++i) array[i] = array[i - end];
      return array;
    });
  }

 private:
  struct Free {
    void operator()(R* memory) const { std::free(memory); }
  };

  // Each array begins a cache line, because a vector that lies across two lines takes longer to
  // load. 16 bytes further, channel-last arrays take 1.10 (float16: 1.13) of the time on AVX-512.
  static constexpr std::size_t kLineBytes = 64;

  R* allocate() {
    void* memory = nullptr;
    if (posix_memalign(&memory, kLineBytes, index(size_) * sizeof(R)) != 0) throw std::bad_alloc();
    return arrays_.emplace_back(static_cast<R*>(memory)).get();
  }

  const Channels channels_;
  const std::int64_t repeat_;  // neighbouring columns of one channel
  const std::int64_t size_;
  std::vector<std::unique_ptr<R, Free>> arrays_;
};

template <class R, class P>
Affine<R> of_z(const ChannelParameters<P>& parameters, std::int64_t c) {
  return Affine<R>::of(parameters.mean[c], parameters.inv_std[c],
                       static_cast<double>(gamma_of(parameters.gamma, c)),
                       static_cast<double>(parameters.beta[c]));
}

/// Returns the same inputs, `offset` elements further. No array may be null.
template <class T>
BackwardInputs<T> moved(BackwardInputs<T> inputs, std::int64_t offset) {
  for (const T*& array : inputs.arrays) array += offset;
  return inputs;
}

/// Two sums for each column of each part of a matrix.
struct ColumnSums {
  ColumnSums(const Matrix& matrix)
      : columns(matrix.columns()), sums(index(2 * matrix.number() * columns)) {}

  double* first_of(std::int64_t part) { return sums.data() + 2 * part * columns; }
  double* second_of(std::int64_t part) { return first_of(part) + columns; }

  std::int64_t columns;
  std::vector<double> sums;
};

template <class T>
void moments_of_columns(const T* x, const Matrix& matrix, const Kernels<T>& kernels,
                        const PartialStatistics& result) {
  ColumnSums sums(matrix);
  parallel_for(matrix.number(), [&](std::int64_t i) {
    kernels.column_moments(x + matrix.begin(i), matrix[i], sums.first_of(i), sums.second_of(i));
  });
  const std::vector<std::size_t> channels = matrix.channels();
  std::vector<std::int64_t> counts(index(result.channels));
  for (std::int64_t part = 0; part < matrix.number(); ++part) {
    const Extent extent = matrix[part];
    for (std::int64_t column = 0; column < extent.columns; ++column) {
      const std::size_t c = channels[index(column)];
      MergeWeight::of(counts[c], extent.rows)
          .merge(sums.first_of(part)[column], sums.second_of(part)[column], &result.mean()[c],
                 &result.m2()[c]);
      counts[c] += extent.rows;
    }
  }
}

template <class T>
void gradient_sums_of_columns(const BackwardInputs<T>& inputs, const Matrix& matrix,
                              const Kernels<T>& kernels, const Affine<const double*>& n,
                              const PartialStatistics& result) {
  ColumnSums sums(matrix);
  parallel_for(matrix.number(), [&](std::int64_t i) {
    kernels.column_gradient_sums(moved(inputs, matrix.begin(i)), matrix[i], n, sums.first_of(i),
                                 sums.second_of(i));
  });
  const std::vector<std::size_t> channels = matrix.channels();
  for (std::int64_t part = 0; part < matrix.number(); ++part) {
    for (std::int64_t column = 0; column < matrix[part].columns; ++column) {
      const std::size_t c = channels[index(column)];
      result.dz()[c] += sums.first_of(part)[column];
      result.dz_centered()[c] += sums.second_of(part)[column];
    }
  }
}

}  // namespace

bool all_have_runs(const std::vector<Layout>& layouts) {
  return std::all_of(layouts.begin(), layouts.end(),
                     [](const Layout& layout) { return layout.has_runs(); });
}

void for_each_part(const std::vector<Layout>& layouts, const std::function<void(Channels)>& visit) {
  const std::int64_t channels = layouts.front().channels;
  if (!all_have_runs(layouts)) return visit({0, channels});
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
  if (!out) return StoreMode::kAssign;
  if (write == WriteMode::kAdd) return StoreMode::kAdd;
  constexpr auto size = static_cast<std::int64_t>(sizeof(T));
  const std::int64_t bytes = layout.count() * layout.channels * size;
  if (bytes < kLargeBytes) return StoreMode::kAssign;
  prefer_huge_pages(out, bytes);
  const std::int64_t run =
      layout.has_runs() ? layout.inner : Matrix(layout, kOutputColumns, kGrain).columns();
  return run * size >= kStreamRunBytes ? StoreMode::kStream : StoreMode::kAssign;
}

template <class T>
void moments(const T* x, const Layout& layout, Channels channels, const PartialStatistics& result) {
  if (layout.is_empty()) return;
  const Kernels<T>& kernels = kernels_in_use<T>();
  if (layout.has_runs()) {
    kernels.run_moments(x + channels.begin * layout.inner, layout, channels.number(),
                        result.mean() + channels.begin, result.m2() + channels.begin);
  } else {
    moments_of_columns(x, Matrix(layout, kSumColumns, kSlab), kernels, result);
  }
}

template <class T>
void normalize(const T* x, const Layout& layout, Channels channels,
               const ChannelParameters<Real<T>>& parameters, const Activation& activation,
               StoreMode store, T* y, const T* shortcut) {
  if (layout.is_empty()) return;
  const Kernels<T>& kernels = kernels_in_use<T>();
  const auto of_channel = [&](std::int64_t c) { return of_z<Real<T>>(parameters, c); };
  if (layout.has_runs()) {
    Arrays<Real<T>> arrays(channels, layout, nullptr);
    const std::int64_t first = channels.begin * layout.inner;
    return kernels.run_normalize(x + first, shortcut ? shortcut + first : nullptr, layout,
                                 channels.number(), arrays.template make<Affine>(of_channel),
                                 activation, store, y + first);
  }
  const Matrix matrix(layout, kOutputColumns, kGrain);
  Arrays<Real<T>> arrays(channels, layout, &matrix);
  const auto of_columns = arrays.template make<Affine>(of_channel);
  for_rows_backwards(matrix, [&](std::int64_t begin, Extent extent) {
    kernels.column_normalize(x + begin, shortcut ? shortcut + begin : nullptr, extent, of_columns,
                             activation, store, y + begin);
  });
}

template <class T>
void gradient_sums(const BackwardInputs<T>& inputs, const Layout& layout, Channels channels,
                   const ChannelParameters<Real<T>>& parameters, const PartialStatistics& result) {
  if (layout.is_empty()) return;
  const Kernels<T>& kernels = kernels_in_use<T>();
  const bool inplace = inputs.from == DzFrom::kInPlace;
  const auto of_channel = [&](std::int64_t c) -> Affine<double> {
    if (inputs.from == DzFrom::kZ) return of_z<double>(parameters, c);
    if (!inplace) return {parameters.mean[c], 0, 0};
    return Affine<double>::of_inverse(static_cast<double>(gamma_of(parameters.gamma, c)),
                                      static_cast<double>(parameters.beta[c]));
  };
  if (layout.has_runs()) {
    Arrays<double> arrays(channels, layout, nullptr);
    kernels.run_gradient_sums(moved(inputs, channels.begin * layout.inner), layout,
                              channels.number(), arrays.make<Affine>(of_channel),
                              result.dz() + channels.begin, result.dz_centered() + channels.begin);
  } else {
    const Matrix matrix(layout, kSumColumns, kSlab);
    Arrays<double> arrays(channels, layout, &matrix);
    gradient_sums_of_columns(inputs, matrix, kernels, arrays.make<Affine>(of_channel), result);
  }
  if (!inplace) return;
  // The kernels summed dz * (x - mean) * inv_std.
  for (auto c = channels.begin; c < channels.end; ++c) {
    result.dz_centered()[c] /= parameters.inv_std[c];
  }
}

template <class T>
void input_gradient(const BackwardInputs<T>& inputs, const Layout& layout, Channels channels,
                    const ChannelParameters<Real<T>>& parameters, const PartialStatistics& sums,
                    double count, StoreMode store, T* dx) {
  using R = Real<T>;
  if (layout.is_empty()) return;
  const Kernels<T>& kernels = kernels_in_use<T>();
  const auto of_channel = [&](std::int64_t c) {
    return GradientAndShift<R>{Gradient<R>::of(parameters, c, sums.dz()[c], sums.dz_centered()[c],
                                               count, inputs.from == DzFrom::kInPlace),
                               inputs.from == DzFrom::kZ ? of_z<R>(parameters, c).shift : R(0)};
  };
  if (layout.has_runs()) {
    Arrays<R> arrays(channels, layout, nullptr);
    const std::int64_t first = channels.begin * layout.inner;
    return kernels.run_input_gradient(moved(inputs, first), layout, channels.number(),
                                      arrays.template make<GradientAndShift>(of_channel), store,
                                      dx + first);
  }
  const Matrix matrix(layout, kOutputColumns, kGrain);
  Arrays<R> arrays(channels, layout, &matrix);
  const auto of_columns = arrays.template make<GradientAndShift>(of_channel);
  for_rows_backwards(matrix, [&](std::int64_t begin, Extent extent) {
    kernels.column_input_gradient(moved(inputs, begin), extent, of_columns, store, dx + begin);
  });
}

template <class T>
void shortcut_gradient(const BackwardInputs<T>& inputs, const Layout& layout, Channels channels,
                       StoreMode store, T* dz) {
  if (layout.is_empty()) return;
  const auto compute = [&](std::int64_t begin, std::int64_t number) {
    kernels_in_use<T>().shortcut_gradient(moved(inputs, begin), number, store, dz + begin);
  };
  if (layout.has_runs()) {
    const std::int64_t number = channels.number() * layout.inner;
    for (std::int64_t outer = 0; outer < layout.outer; ++outer) {
      compute((outer * layout.channels + channels.begin) * layout.inner, number);
    }
    return;
  }
  for_rows_backwards(Matrix(layout, kOutputColumns, kGrain), [&](std::int64_t begin, Extent part) {
    compute(begin, part.rows * part.columns);
  });
}

#define GLUON_SYNCBN_INSTANTIATE(T)                                                                \
  template StoreMode prepare_output<T>(WriteMode, const Layout&, T*);                              \
  template void moments<T>(const T*, const Layout&, Channels, const PartialStatistics&);           \
  template void normalize<T>(const T*, const Layout&, Channels, const ChannelParameters<Real<T>>&, \
                             const Activation&, StoreMode, T*, const T*);                          \
  template void gradient_sums<T>(const BackwardInputs<T>&, const Layout&, Channels,                \
                                 const ChannelParameters<Real<T>>&, const PartialStatistics&);     \
  template void input_gradient<T>(const BackwardInputs<T>&, const Layout&, Channels,               \
                                  const ChannelParameters<Real<T>>&, const PartialStatistics&,     \
                                  double, StoreMode, T*);                                          \
  template void shortcut_gradient<T>(const BackwardInputs<T>&, const Layout&, Channels, StoreMode, \
                                     T*);
GLUON_SYNCBN_FOR_EACH_DTYPE(GLUON_SYNCBN_INSTANTIATE)
#undef GLUON_SYNCBN_INSTANTIATE

}  // namespace gluon_syncbn::cpu
