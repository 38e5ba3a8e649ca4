#pragma once

#include <typeinfo>

#include "cuda/spelling.h"
#include "emulation/bodies.h"
#include "emulation/lockstep.h"
#include "fake_cuda/emulated_kernel.h"

namespace gluon_syncbn::tests {

/// Makes the fake CUDA run a kernel in lockstep.
template <class Body>
void emulate() {
  fake_cuda::add_emulated_kernel(cuda::spelling_of(typeid(Body)),
                                 {sizeof(Body), alignof(Body), Body::kBlockThreads,
                                  [](void* body) {
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11
                                    // The fake CUDA looks for addresses in all bytes,
                                    // and old ones may be left between members.
                                    __builtin_clear_padding(static_cast<Body*>(body));
#else
                                    static_cast<void>(body);
#endif
                                  },
                                  [](const void* body, long blocks, Order order) {
                                    run_in_lockstep(*static_cast<const Body*>(body), blocks, order);
                                  }});
}

}  // namespace gluon_syncbn::tests

/// Emulates the bodies that LIST visits.
#define GLUON_SYNCBN_EMULATE(...) tests::emulate<__VA_ARGS__>();
