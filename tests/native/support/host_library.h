#ifndef GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_HOST_LIBRARY_H_
#define GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_HOST_LIBRARY_H_

#include <dlfcn.h>

#include "common/error.h"
#include "mxnet/c_api.h"

namespace gluon_syncbn::tests {

/// Loads the host that stands in for libmxnet, with emulated GPUs, for tests of single parts of
/// src/mxnet.
inline void load_host() {
  if (!dlopen(GLUON_SYNCBN_STAND_IN_EMULATED, RTLD_NOW)) throw Error(dlerror());
  mxnet::load_api(GLUON_SYNCBN_STAND_IN_EMULATED);
}

}  // namespace gluon_syncbn::tests

#endif  // GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_HOST_LIBRARY_H_
