#pragma once

// What nvcc knows by itself, in front of a kernel that the host's compiler compiles. Threads run
// one after the other, so a kernel whose threads talk to each other does not compile.

#include <math.h>

#include <cstddef>
#include <utility>

#include "common/half.h"
#include "nvrtc/compiled_kernel.h"

#define __global__ inline
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

inline thread_local dim3 gridDim, blockDim, blockIdx, threadIdx;

struct alignas(16) ulonglong2 {
  unsigned long long x, y;
};
struct alignas(16) ulonglong4 {
  unsigned long long x, y, z, w;
};

template <class T>
T __ldg(const T* from) {
  return *from;
}

inline double rsqrt(double x) { return 1 / sqrt(x); }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline double rcbrt(double x) { return 1 / cbrt(x); }
inline float rcbrtf(float x) { return 1 / cbrtf(x); }

// Named in MXNet's sources. They are defined nowhere, so a library that uses one does not load.
double erfinv(double);
float erfinvf(float);
extern double sum_of_square;

// In place of the two statements of PTX in MXNet's sources.
inline unsigned short fake_cuda_to_half(float x) { return gluon_syncbn::to_half(x).bits; }
inline float fake_cuda_to_float(unsigned short bits) { return gluon_syncbn::to_float({bits}); }

namespace fake_cuda {

template <class Kernel, Kernel kernel>
struct Compiled;
template <class... Arguments, void (*kernel)(Arguments...)>
struct Compiled<void (*)(Arguments...), kernel> {
  static constexpr std::size_t bytes[] = {sizeof(Arguments)...};

  template <std::size_t... I>
  static void call(void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<const Arguments*>(arguments[I])...);
  }

  template <class Body>
  static void for_each(dim3 size, dim3* index, const Body& body) {
    for (index->z = 0; index->z < size.z; ++index->z) {
      for (index->y = 0; index->y < size.y; ++index->y) {
        for (index->x = 0; index->x < size.x; ++index->x) body();
      }
    }
  }

  static void run(dim3 grid, dim3 block, void** arguments) {
    gridDim = grid;
    blockDim = block;
    for_each(grid, &blockIdx, [=] {
      for_each(block, &threadIdx,
               [=] { call(arguments, std::make_index_sequence<sizeof...(Arguments)>()); });
    });
  }

  static constexpr CompiledKernel kernel_of_library = {sizeof...(Arguments), bytes, run};
};

}  // namespace fake_cuda
