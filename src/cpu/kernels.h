#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "common/dtype.h"
#include "common/half.h"
#include "common/layout.h"
#include "cpu/simd/isa.h"
#include "norm/activation.h"
#include "norm/coefficients.h"
#include "norm/partial_statistics.h"
#include "norm/per_channel.h"
#include "norm/variants.h"

namespace gluon_syncbn {

/// The phases of batch normalization on one device, for T in float, double and Half. Sums are
/// computed in double. Their order depends on the layout and on the instruction set alone.
namespace cpu {

/// Divides the channels of arrays with these layouts into parts, and calls visit(channels) for all
/// parts, on the threads of the pool. If an array has no runs (Layout::has_runs), there is one
/// part, because the functions below must compute all its channels at once. They divide its rows
/// instead.
void for_each_part(const std::vector<Layout>& layouts, const std::function<void(Channels)>& visit);

bool all_have_runs(const std::vector<Layout>& layouts);

/// For the `visit` of for_each_part: calls visit(part) for all parts of `channels` of layouts[i].
/// There is one part, except where another array without runs kept for_each_part from dividing the
/// channels. Then an array with runs has parts of its own, on the threads of the pool.
template <class Visit>
void for_each_part_of(const std::vector<Layout>& layouts, std::size_t i, Channels channels,
                      const Visit& visit) {
  if (all_have_runs(layouts)) return visit(channels);
  for_each_part({layouts[i]}, visit);
}

/// Chooses how to write an output array, which may be null. Call it once, before the array is
/// written.
template <class T>
StoreMode prepare_output(WriteMode write, const Layout& layout, T* out);

/// Writes the moments of `channels` into `result`, which has zeros for all channels.
template <class T>
void moments(const T* x, const Layout& layout, Channels channels, const PartialStatistics& result);

/// y = act(z), or act(z + shortcut).
template <class T>
void normalize(const T* x, const Layout& layout, Channels channels,
               const ChannelParameters<Real<T>>& parameters, const Activation& activation,
               StoreMode store, T* y, const T* shortcut = nullptr);

/// Writes the two gradient sums of `channels` into `result`, which has zeros for all channels.
template <class T>
void gradient_sums(const BackwardInputs<T>& inputs, const Layout& layout, Channels channels,
                   const ChannelParameters<Real<T>>& parameters, const PartialStatistics& result);

/// Writes dx. `sums` are the merged sums of all devices, whose channels have `count` elements.
/// `count` is 0 if the running statistics were used.
template <class T>
void input_gradient(const BackwardInputs<T>& inputs, const Layout& layout, Channels channels,
                    const ChannelParameters<Real<T>>& parameters, const PartialStatistics& sums,
                    double count, StoreMode store, T* dx);

/// Writes dz, computed from the output unless there is no activation.
template <class T>
void shortcut_gradient(const BackwardInputs<T>& inputs, const Layout& layout, Channels channels,
                       StoreMode store, T* dz);

}  // namespace cpu
}  // namespace gluon_syncbn
