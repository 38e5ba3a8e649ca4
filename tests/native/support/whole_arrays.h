#ifndef GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_WHOLE_ARRAYS_H_
#define GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_WHOLE_ARRAYS_H_

#include <cstddef>
#include <vector>

#include "common/real.h"
#include "cpu/kernels.h"

// The phases on all channels of an array, as a backend puts them together.
namespace gluon_syncbn::cpu {

/// What a layer has of each channel.
template <class T>
struct Numbers {
  std::vector<double> mean;
  std::vector<double> inv_std;
  std::vector<Real<T>> beta;
  std::vector<Real<T>> gamma = {};  ///< none: 1

  Affine<T> affine() const {
    return {mean.data(), inv_std.data(), gamma.empty() ? nullptr : gamma.data(), beta.data()};
  }
};

inline std::vector<double> zeros(const Layout& layout) {
  return std::vector<double>(static_cast<std::size_t>(layout.channels));
}

template <class T>
Moments moments(const T* x, const Layout& layout) {
  Moments result{layout.count(), zeros(layout), zeros(layout)};
  ChannelParts(layout).for_each([&](ChannelRange part) { moments(x, layout, part, &result); });
  return result;
}

template <class T>
GradientSums gradient_sums(const T* dy, const T* x, const Layout& layout, const Numbers<T>& n,
                           const Gate<T>& gate = {}) {
  GradientSums result{zeros(layout), zeros(layout)};
  ChannelParts(layout).for_each(
      [&](ChannelRange part) { gradient_sums(dy, x, layout, part, n.affine(), gate, &result); });
  return result;
}

template <class T>
void normalize(const T* x, const Layout& layout, const Numbers<T>& n, WriteMode write, T* y,
               const Activation& activation = {}, const T* shortcut = nullptr) {
  const StoreMode store = prepare_output(write, layout, y);
  ChannelParts(layout).for_each_backwards([&](ChannelRange part) {
    normalize(x, layout, part, n.affine(), activation, store, y, shortcut);
  });
}

template <class T>
void input_gradient(const T* dy, const T* x, const Layout& layout, const Numbers<T>& n,
                    const GradientSums* sums, double count, WriteMode write, T* dx,
                    const Gate<T>& gate = {}) {
  const StoreMode store = prepare_output(write, layout, dx);
  ChannelParts(layout).for_each_backwards([&](ChannelRange part) {
    input_gradient(dy, x, layout, part, n.affine(), gate, sums, count, store, dx);
  });
}

template <class T>
void shortcut_gradient(const T* dy, const Layout& layout, WriteMode write, T* dz,
                       const Gate<T>& gate) {
  const StoreMode store = prepare_output(write, layout, dz);
  ChannelParts(layout).for_each_backwards(
      [&](ChannelRange part) { shortcut_gradient(dy, layout, part, gate, store, dz); });
}

}  // namespace gluon_syncbn::cpu

#endif  // GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_WHOLE_ARRAYS_H_
