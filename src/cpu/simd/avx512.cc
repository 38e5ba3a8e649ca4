#define GLUON_SYNCBN_ISA avx512
#define GLUON_SYNCBN_VECTOR_BYTES 64
#include "cpu/simd/loops.h"
