#ifndef GLUON_SYNCBN_MXNET_BLAS_H_
#define GLUON_SYNCBN_MXNET_BLAS_H_

#include <string>

namespace gluon_syncbn::mxnet {

/// Lets the matrix products of the libmxnet that was loaded from the file `libmxnet` compute in the
/// OpenBLAS in the file `openblas`, from now on; those under way end where they began. If that is
/// null, it only finds out where they compute. Call it before wait_before_forks(), whose handler
/// must come before those of OpenBLAS: they end its threads, and with them any product that still
/// needs them.
///
/// Throws Error, which says why, if the products stay where they are: for instance in a library
/// that is not an older OpenBLAS.
void use_openblas(const char* libmxnet, const char* openblas);

/// Which library computes MXNet's matrix products, and with which kernels.
std::string describe_blas();

/// Lets one thread compute each matrix product: contexts compute theirs at the same time, and a
/// second one would have to wait for the threads of the first. Throws Error, in the name of
/// `layer`, if it could wait forever.
void use_one_thread_per_product(const std::string& layer);

}  // namespace gluon_syncbn::mxnet

#endif  // GLUON_SYNCBN_MXNET_BLAS_H_
