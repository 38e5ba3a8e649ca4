// Fault: all CPU contexts share workspaces and random number generators, while each GPU context has
//   its own (ResourceManagerImpl in mxnet/src/resource.cc). In later builds of MXNet 2, CPU
//   contexts have generators of their own, and still share workspaces.
// Met by: a network with convolutions on two CPU contexts. An operation of one device that comes
//   after the synchronization can be first in line for the workspace that another device needs to
//   reach it.
// Without this file: both devices wait until the timeout.
// Delete it, with resource_managers and vtable, when CPU contexts have workspaces of their own.

#pragma once

namespace gluon_syncbn::mxnet {

/// Gives every CPU context except cpu(0) its own workspaces and random number generators in each
/// thread. cpu(0) keeps those of the thread.
///
/// Replaces virtual functions of ResourceManagerImpl in the library `libmxnet` until the process
/// ends. Throws Error, and replaces none, if the library does not have the expected functions.
void give_cpu_contexts_workspaces(const char* libmxnet);

}  // namespace gluon_syncbn::mxnet
