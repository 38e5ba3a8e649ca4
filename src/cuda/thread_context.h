#pragma once

namespace gluon_syncbn::cuda {

// The runtime cannot distinguish a thread without a context from a thread on GPU 0. From CUDA 12
// on, its cudaSetDevice also makes a context. These functions of the driver make none.

/// Returns the context of the calling thread; null if the thread has none.
void* thread_context();
/// Returns whether the driver has set the context.
bool set_thread_context(void* context);

}  // namespace gluon_syncbn::cuda
