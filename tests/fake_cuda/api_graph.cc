// CUDA graphs, which the fake has not: who asks for one hears of it at once.

#include <cuda_runtime_api.h>

#include "die.h"

#define FAKE_CUDA_MISSING(function, ...) \
  cudaError_t function(__VA_ARGS__) { fake_cuda::die(#function " is not imitated"); }

extern "C" {

FAKE_CUDA_MISSING(cudaGraphInstantiate, cudaGraphExec_t*, cudaGraph_t, cudaGraphNode_t*, char*,
                  size_t)
FAKE_CUDA_MISSING(cudaGraphLaunch, cudaGraphExec_t, cudaStream_t)
FAKE_CUDA_MISSING(cudaGraphExecDestroy, cudaGraphExec_t)
FAKE_CUDA_MISSING(cudaGraphExecUpdate, cudaGraphExec_t, cudaGraph_t, cudaGraphNode_t*,
                  cudaGraphExecUpdateResult*)
FAKE_CUDA_MISSING(cudaGraphGetNodes, cudaGraph_t, cudaGraphNode_t*, size_t*)
FAKE_CUDA_MISSING(cudaGraphMemcpyNodeGetParams, cudaGraphNode_t, cudaMemcpy3DParms*)
FAKE_CUDA_MISSING(cudaGraphMemsetNodeGetParams, cudaGraphNode_t, cudaMemsetParams*)

}  // extern "C"
