#ifndef GLUON_SYNCBN_TESTS_NATIVE_BRIDGE_GPU_BRIDGE_H_
#define GLUON_SYNCBN_TESTS_NATIVE_BRIDGE_GPU_BRIDGE_H_

#include <cstdint>

// What scripts/check_gpu.py calls: the kernels on the first GPU, with its memory and its time.
// Functions that may fail give nullptr, or what went wrong.

#pragma GCC visibility push(default)
extern "C" {

/// `stream`: the cudaStream_t of the first context; null if the GPU is emulated.
const char* gpu_bridge_device(const char** name, void** stream, std::int64_t* cache_bytes);

/// Puts a copy from and to any memory on the stream of the first context.
const char* gpu_bridge_copy(void* to, const void* from, std::int64_t bytes);
/// Puts copies there that take a while and leave nothing else in the cache.
const char* gpu_bridge_delay(int copies);
/// Waits until all work is done.
const char* gpu_bridge_finish();

/// A layer with the arrays of one step, on some contexts, which are streams of the GPU and share
/// the batch. Normal numbers, with `mean` in x, are in x, dy, gamma and beta.
struct GpuBridgeLayer;

/// `element` counts as Element does.
const char* gpu_bridge_open(std::int64_t batch, std::int64_t channels, std::int64_t pixels,
                            int element, int channel_last, int contexts, double mean, int seed,
                            double eps, double momentum, GpuBridgeLayer** layer);
/// Counted in this order: x, dy, y and dx of the whole batch; gamma and beta; running mean and
/// variance and the gradients of gamma and beta, all channels of one context behind those of
/// another.
const char* gpu_bridge_array(GpuBridgeLayer* layer, int index, void** begin, std::int64_t* bytes);
/// Puts a phase on the stream of each context: 0 moments, 1 normalization, 2 gradient sums, 3 input
/// gradient; 4, 5 and 6 are 1, 2 and 3 with ReLU. One may be repeated without those before it.
const char* gpu_bridge_run(GpuBridgeLayer* layer, int phase);
/// The greatest error of the results of the first step, relative to the greatest number expected
/// by definition in long double.
const char* gpu_bridge_error(GpuBridgeLayer* layer, double* error);
const char* gpu_bridge_close(GpuBridgeLayer* layer);

/// Work of all contexts that is put on their streams between the two calls is timed by the GPU,
/// from where the first one's work so far is done. `queued`: whether that was not yet so when the
/// second call came, so that the GPU never waited for the host.
const char* gpu_bridge_begin();
const char* gpu_bridge_end(double* seconds, int* queued);

}  // extern "C"
#pragma GCC visibility pop

#endif  // GLUON_SYNCBN_TESTS_NATIVE_BRIDGE_GPU_BRIDGE_H_
