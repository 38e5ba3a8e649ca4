#pragma once

/// For functions that the compiler must inline.
#define GLUON_SYNCBN_INLINE inline __attribute__((always_inline))
