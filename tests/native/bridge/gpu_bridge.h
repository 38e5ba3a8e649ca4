#ifndef GLUON_SYNCBN_TESTS_NATIVE_BRIDGE_GPU_BRIDGE_H_
#define GLUON_SYNCBN_TESTS_NATIVE_BRIDGE_GPU_BRIDGE_H_

#include <cstdint>

// What scripts/gpu_benchmarks/bridge.py calls. Functions that may fail give nullptr, or what went
// wrong.

#pragma GCC visibility push(default)
extern "C" {

/// Arrays of one context, in memory of its GPU. All but x, dy, y and dx have one element per
/// channel.
struct GpuBridgeContext {
  std::int64_t outer;
  const void* x;
  const void* dy;
  void* y;
  void* dx;
  const void* gamma;
  const void* beta;
  void* running_mean;
  void* running_variance;
  void* gamma_gradient;
  void* beta_gradient;
};

struct GpuBridgeDevice {
  void* stream;  ///< cudaStream_t of the context; null where the GPU is emulated
  std::int64_t cache_bytes;
};

/// A layer on some contexts, with the arrays of one step.
struct GpuBridgeRound;

const char* gpu_bridge_device(int context, GpuBridgeDevice* device);

/// Waits until all work on contexts 0, 1, ... is done.
const char* gpu_bridge_finish(int contexts);

/// `element` counts as Element does. Arrays must outlive the round.
const char* gpu_bridge_open(int number, const GpuBridgeContext* contexts, int element,
                            std::int64_t channels, std::int64_t inner, double eps, double momentum,
                            GpuBridgeRound** round);

/// The phases of a step on all contexts, each for itself behind those before it on the streams. One
/// may be repeated without these.
const char* gpu_bridge_moments(GpuBridgeRound* round);
const char* gpu_bridge_normalize(GpuBridgeRound* round);
const char* gpu_bridge_gradient_sums(GpuBridgeRound* round);
const char* gpu_bridge_input_gradient(GpuBridgeRound* round);

void gpu_bridge_close(GpuBridgeRound* round);

}  // extern "C"
#pragma GCC visibility pop

#endif  // GLUON_SYNCBN_TESTS_NATIVE_BRIDGE_GPU_BRIDGE_H_
