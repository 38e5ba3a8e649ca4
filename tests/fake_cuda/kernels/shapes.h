#ifndef GLUON_SYNCBN_TESTS_FAKE_CUDA_KERNELS_SHAPES_H_
#define GLUON_SYNCBN_TESTS_FAKE_CUDA_KERNELS_SHAPES_H_

#include <cstdint>
#include <cstring>
#include <vector>

namespace fake_cuda {

/// mshadow's Shape<n>: integers of 32 bits.
using Shape = std::vector<std::int32_t>;

inline Shape shape_of(const void* argument, int dimensions) {
  Shape shape(static_cast<std::size_t>(dimensions));
  std::memcpy(shape.data(), argument, shape.size() * sizeof(shape[0]));
  return shape;
}

/// Where an element lies in each axis.
inline Shape unravel(std::int64_t index, const Shape& shape) {
  Shape coordinates(shape.size());
  for (std::size_t i = shape.size(); i-- > 0;) {
    coordinates[i] = static_cast<std::int32_t>(index % shape[i]);
    index /= shape[i];
  }
  return coordinates;
}

inline std::int64_t dot(const Shape& a, const Shape& b) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::int64_t(a[i]) * b[i];
  return sum;
}

/// Axes of length 1 are repeated.
inline std::int64_t ravel(const Shape& coordinates, const Shape& shape) {
  std::int64_t index = 0;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    index = index * shape[i] + (shape[i] > 1 ? coordinates[i] : 0);
  }
  return index;
}

}  // namespace fake_cuda

#endif  // GLUON_SYNCBN_TESTS_FAKE_CUDA_KERNELS_SHAPES_H_
