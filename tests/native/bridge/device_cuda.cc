#include <cuda_runtime_api.h>

#include "bridge/device.h"
#include "cuda/check.h"
#include "cuda/gpu.h"

namespace gluon_syncbn::bridge {

GpuBridgeDevice device_of(int context) {
  const cuda::Stream& stream = *cuda::Gpu::of(context).stream();
  int bytes = 0;
  cuda::check(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, stream.ordinal()),
              "cudaDeviceGetAttribute", stream.ordinal());
  return {cuda::native(stream), bytes};
}

}  // namespace gluon_syncbn::bridge
