#ifndef GLUON_SYNCBN_MXNET_CPU_POOLS_H_
#define GLUON_SYNCBN_MXNET_CPU_POOLS_H_

namespace gluon_syncbn::mxnet {

/// Gives every CPU context but cpu(0) workspaces and random numbers of its own in each thread, as
/// MXNet gives them to every GPU context: otherwise an operation behind the synchronization on one
/// device can hold the workspace that another device needs to get there. cpu(0) keeps the
/// thread's.
///
/// For this, functions of the class mxnet::resource::ResourceManagerImpl in the library `libmxnet`
/// are replaced for good, once per process. Throws Error, and replaces none, if the library does
/// not have what is expected.
void give_cpu_contexts_pools(const char* libmxnet);

}  // namespace gluon_syncbn::mxnet

#endif  // GLUON_SYNCBN_MXNET_CPU_POOLS_H_
