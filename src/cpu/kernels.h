#ifndef GLUON_SYNCBN_CPU_KERNELS_H_
#define GLUON_SYNCBN_CPU_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "common/half.h"
#include "common/layout.h"
#include "common/real.h"
#include "common/write_mode.h"
#include "cpu/simd/isa.h"
#include "norm/activation.h"
#include "norm/moments.h"

namespace gluon_syncbn {

/// The four phases of batch normalization on one device, for T in float, double and Half. Sums are
/// accumulated in double in an order that depends on the layout alone.
///
/// S. Ioffe and C. Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing
/// Internal Covariate Shift", 2015, algorithm 1 and section 3.
namespace cpu {

/// z = (x - mean) * inv_std * gamma + beta, by the numbers of all channels.
template <class T>
struct Affine {
  const double* mean;
  const double* inv_std;
  const Real<T>* gamma;  ///< null: 1
  const Real<T>* beta;   ///< null where nothing looks at z

  double scale(std::size_t c) const {
    return gamma ? static_cast<double>(gamma[c]) * inv_std[c] : inv_std[c];
  }
};

/// What makes dz of dy, the gradient with respect to what the activation was given: the output or,
/// where that is not at hand, z. In place, with x null, the output tells x too.
template <class T>
struct Gate {
  Activation activation = {};
  const T* y = nullptr;
};

/// Whether some channels can be taken without the others: their elements lie in long runs. Of
/// other arrays, `channels` in what follows must be all channels. The numbers come out the same.
bool has_runs(const Layout& layout);

/// The parts of the channels that threads take, if each channel has `count` elements. An array
/// without runs is one part, which the functions below divide up themselves.
class ChannelParts {
 public:
  ChannelParts(const Layout& layout, std::int64_t count);
  explicit ChannelParts(const Layout& layout) : ChannelParts(layout, layout.count()) {}

  std::int64_t number() const { return (channels_ + each_ - 1) / each_; }
  ChannelRange operator[](std::int64_t i) const;

  /// Calls visit(channels) for all parts, on threads of the pool.
  void for_each(const std::function<void(ChannelRange)>& visit) const;
  void for_each_backwards(const std::function<void(ChannelRange)>& visit) const;

 private:
  std::int64_t channels_;
  std::int64_t each_;
};

/// Once for an output, before it is written.
template <class T>
StoreMode prepare_output(WriteMode write, const Layout& layout, T* out);

/// Writes the numbers of some channels into those of all, which are zeros before.
template <class T>
void moments(const T* x, const Layout& layout, ChannelRange channels, Moments* result);

/// y = act(z), or act(z + shortcut).
template <class T>
void normalize(const T* x, const Layout& layout, ChannelRange channels,
               const Affine<T>& normalization, const Activation& activation, StoreMode store, T* y,
               const T* shortcut = nullptr);

/// Sums of dz, like moments(). `x` may be null; see Gate.
template <class T>
void gradient_sums(const T* dy, const T* x, const Layout& layout, ChannelRange channels,
                   const Affine<T>& normalization, const Gate<T>& gate, GradientSums* result);

/// `sums` are those of all devices, whose channels have `count` elements; null if the statistics
/// are not those of the batch.
template <class T>
void input_gradient(const T* dy, const T* x, const Layout& layout, ChannelRange channels,
                    const Affine<T>& normalization, const Gate<T>& gate, const GradientSums* sums,
                    double count, StoreMode store, T* dx);

/// dz itself. The gate has an output or no activation.
template <class T>
void shortcut_gradient(const T* dy, const Layout& layout, ChannelRange channels,
                       const Gate<T>& gate, StoreMode store, T* dz);

}  // namespace cpu
}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_CPU_KERNELS_H_
