#define GLUON_SYNCBN_ISA baseline
#define GLUON_SYNCBN_VECTOR_BYTES 16
#include "cpu/simd/loops.h"
