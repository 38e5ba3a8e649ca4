#ifndef GLUON_SYNCBN_CUDA_THREAD_CONTEXT_H_
#define GLUON_SYNCBN_CUDA_THREAD_CONTEXT_H_

namespace gluon_syncbn::cuda {

// The context that the driver lets the calling thread work in; null where the thread has none. The
// runtime cannot tell such a thread from one that works on GPU 0, and its cudaSetDevice makes a
// context where there is none (from CUDA 12 on). These two make none.

void* thread_context();
/// Whether the driver has done so.
bool set_thread_context(void* context);

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_THREAD_CONTEXT_H_
