#pragma once

// Functions for GPUs are in headers that any C++ compiler understands. So the tests run the same
// source on the CPU, thread by thread (tests/native/emulation/lockstep.h).

#ifdef __CUDACC__
#define GLUON_SYNCBN_HOST_DEVICE __host__ __device__
#else
#define GLUON_SYNCBN_HOST_DEVICE
#endif

/// For functions that the compiler must inline.
#define GLUON_SYNCBN_HOST_DEVICE_INLINE \
  GLUON_SYNCBN_HOST_DEVICE inline __attribute__((always_inline))
