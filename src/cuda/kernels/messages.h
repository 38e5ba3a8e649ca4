#pragma once

#include <cstdint>

#include "cuda/kernels/body.h"
#include "norm/merge_weight.h"

namespace gluon_syncbn::cuda {

/// The two numbers of a channel in a message.
struct Pair {
  double first;
  double second;
};

/// A message that a kernel writes: two numbers per channel, all first numbers, then all second
/// numbers.
struct Message {
  double* numbers;
  std::int64_t channels;

  void put(std::int64_t c, const Pair& pair) const {
    numbers[c] = pair.first;
    numbers[channels + c] = pair.second;
  }
};

/// At most so many GPU contexts can meet.
constexpr int kMostDevices = 64;

/// The messages of all devices, in the order of devices.
struct Messages {
  const double* values[kMostDevices];
  MergeWeight weights[kMostDevices];  // of moments; 0 for a device without elements
  std::int64_t count;                 // elements per channel of all devices
  int size;

  void add(const double* of_device, std::int64_t own_count) {
    values[size] = of_device;
    weights[size++] = own_count > 0 ? MergeWeight::of(count, own_count) : MergeWeight{};
    count += own_count;
  }

  /// Calls visit(weight, first, second) with the numbers of a channel, in the order of devices. The
  /// loads of several devices overlap.
  template <class Visit>
  void for_each(std::int64_t channels, std::int64_t c, const Visit& visit) const {
    constexpr int kAtOnce = 8;
    for (int begin = 0; begin < size; begin += kAtOnce) {
      double first[kAtOnce];
      double second[kAtOnce];
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        if (begin + i >= size) continue;
        first[i] = values[begin + i][c];
        second[i] = values[begin + i][channels + c];
      }
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        if (begin + i < size) visit(weights[begin + i], first[i], second[i]);
      }
    }
  }
};

}  // namespace gluon_syncbn::cuda
