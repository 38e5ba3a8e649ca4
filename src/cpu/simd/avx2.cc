#define GLUON_SYNCBN_ISA avx2
#define GLUON_SYNCBN_VECTOR_BYTES 32
#include "cpu/simd/loops.h"
