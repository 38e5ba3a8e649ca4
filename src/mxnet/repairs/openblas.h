// Faults: the OpenBLAS 0.3.13 in MXNet's packages can wait forever if several CPU contexts compute
//   matrix products at the same time. It takes newer processors for an old one, and its kernels for
//   that one are slow.
// Met by: dense layers and convolutions on CPU contexts.
// Without this file: a context can wait forever, and products take three to six times longer.
// Delete it when MXNet's packages contain a newer OpenBLAS, with one thread per product.

#pragma once

#include <string>

namespace gluon_syncbn::mxnet {

/// Makes MXNet compute its matrix products in the OpenBLAS of the file `openblas` from now on. A
/// product that has begun ends in the library where it began. If `openblas` is null, this function
/// only finds out which library computes the products. `libmxnet` is the file of the loaded
/// libmxnet.
///
/// Call run_before_later_fork_handlers() after it. At a fork, the handler of OpenBLAS ends its
/// threads, and the handler of survive_forks() must first wait for the products that need them.
/// Handlers that are registered later run earlier.
///
/// Throws Error with the reason if MXNet keeps its library, for instance because that is not an
/// older OpenBLAS.
void use_openblas(const char* libmxnet, const char* openblas);

/// Names the library that computes MXNet's matrix products, and the processor of its kernels.
std::string describe_blas();

/// Makes one thread compute each matrix product. CPU contexts compute products at the same time,
/// and would otherwise wait for each other's threads. Throws Error, in the name of `layer`, if this
/// library cannot set the number of threads and a context could wait forever.
void use_one_thread_per_product(const std::string& layer);

}  // namespace gluon_syncbn::mxnet
