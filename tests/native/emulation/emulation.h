#ifndef GLUON_SYNCBN_TESTS_NATIVE_EMULATION_EMULATION_H_
#define GLUON_SYNCBN_TESTS_NATIVE_EMULATION_EMULATION_H_

#include <atomic>

namespace gluon_syncbn::tests {

extern std::atomic<int> emulated_devices;
extern std::atomic<bool> emulated_peer_access;
extern std::atomic<long> emulated_allocations;       ///< so far
extern std::atomic<long> emulated_host_allocations;  ///< those of host memory
extern std::atomic<long> emulated_launches;          ///< of kernels and memsets so far
extern std::atomic<bool> emulated_fault;       ///< the next kernel breaks its stream, as on a GPU
extern std::atomic<bool> emulated_copy_fault;  ///< the next copy does

}  // namespace gluon_syncbn::tests

#endif  // GLUON_SYNCBN_TESTS_NATIVE_EMULATION_EMULATION_H_
