#ifndef GLUON_SYNCBN_COMMON_HOST_DEVICE_H_
#define GLUON_SYNCBN_COMMON_HOST_DEVICE_H_

// What runs on a GPU is written in headers that any C++ compiler understands, so that the tests run
// the very same source on the CPU, thread by thread (tests/native/emulation/lockstep.h).

#ifdef __CUDACC__
#define GLUON_SYNCBN_HOST_DEVICE __host__ __device__
#else
#define GLUON_SYNCBN_HOST_DEVICE
#endif

#endif  // GLUON_SYNCBN_COMMON_HOST_DEVICE_H_
