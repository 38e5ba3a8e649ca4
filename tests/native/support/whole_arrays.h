#ifndef GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_WHOLE_ARRAYS_H_
#define GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_WHOLE_ARRAYS_H_

#include <cstddef>
#include <vector>

#include "cpu/kernels.h"

// The phases on all channels of an array, as a backend puts them together.
namespace gluon_syncbn::cpu {

inline std::vector<double> zeros(const Layout& layout) {
  return std::vector<double>(static_cast<std::size_t>(layout.channels));
}

/// Of some channels out of those of all.
inline std::vector<double> part(const std::vector<double>& all, ChannelRange channels) {
  return {all.begin() + channels.begin, all.begin() + channels.end};
}

template <class T>
Moments moments(const T* x, const Layout& layout) {
  Moments result{layout.count(), zeros(layout), zeros(layout)};
  ChannelParts(layout).for_each([&](ChannelRange part) { moments(x, layout, part, &result); });
  return result;
}

template <class T>
GradientSums gradient_sums(const T* dy, const T* x, const Layout& layout,
                           const std::vector<double>& mean, const Gate<T>& gate = {}) {
  GradientSums result{zeros(layout), zeros(layout)};
  ChannelParts(layout).for_each(
      [&](ChannelRange part) { gradient_sums(dy, x, layout, part, mean, &result, gate); });
  return result;
}

template <class T>
void normalize(const T* x, const Layout& layout, const Normalization& n, WriteMode write, T* y,
               const T* shortcut = nullptr) {
  const StoreMode store = prepare_output(write, layout, y);
  ChannelParts(layout).for_each_backwards([&](ChannelRange channels) {
    const Normalization own{part(n.mean, channels), part(n.scale, channels),
                            part(n.shift, channels), n.activation};
    normalize(x, layout, channels, own, store, y, shortcut);
  });
}

template <class T>
void input_gradient(const T* dy, const T* x, const Layout& layout, const InputGradient& g,
                    WriteMode write, T* dx, const Gate<T>& gate = {}) {
  const StoreMode store = prepare_output(write, layout, dx);
  ChannelParts(layout).for_each_backwards([&](ChannelRange channels) {
    const InputGradient own{part(g.mean, channels), part(g.dy_factor, channels),
                            part(g.x_factor, channels), part(g.constant, channels)};
    input_gradient(dy, x, layout, channels, own, store, dx, gate);
  });
}

template <class T>
void shortcut_gradient(const T* dy, const Layout& layout, WriteMode write, T* dz,
                       const Gate<T>& gate) {
  const StoreMode store = prepare_output(write, layout, dz);
  ChannelParts(layout).for_each_backwards(
      [&](ChannelRange part) { shortcut_gradient(dy, layout, part, store, dz, gate); });
}

}  // namespace gluon_syncbn::cpu

#endif  // GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_WHOLE_ARRAYS_H_
