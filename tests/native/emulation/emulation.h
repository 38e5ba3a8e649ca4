#ifndef GLUON_SYNCBN_TESTS_NATIVE_EMULATION_EMULATION_H_
#define GLUON_SYNCBN_TESTS_NATIVE_EMULATION_EMULATION_H_

#include <atomic>

namespace gluon_syncbn::tests {

/// As many as GLUON_SYNCBN_EMULATED_GPUS in the environment says, or 8. A kernel that gets a
/// pointer to memory of another GPU breaks its stream, unless access was enabled.
extern std::atomic<int> emulated_devices;
extern std::atomic<bool> emulated_peer_access;
extern std::atomic<long> emulated_meetings;     ///< of a GPU with another that it is to read
extern std::atomic<long> emulated_copies;       ///< so far
extern std::atomic<long> emulated_allocations;  ///< so far
extern std::atomic<long> emulated_releases;
extern std::atomic<long> emulated_host_allocations;  ///< those of host memory
extern std::atomic<long> emulated_launches;          ///< of kernels and memsets so far
extern std::atomic<int> emulated_refusals;           ///< as many allocations to come find no memory
extern std::atomic<int> emulated_event_refusals;     ///< as many events to come cannot be made
extern std::atomic<bool> emulated_capture;           ///< all streams are being captured
extern std::atomic<bool> emulated_fault;       ///< the next kernel breaks its stream, as on a GPU
extern std::atomic<bool> emulated_copy_fault;  ///< the next copy does

}  // namespace gluon_syncbn::tests

#endif  // GLUON_SYNCBN_TESTS_NATIVE_EMULATION_EMULATION_H_
