#ifndef GLUON_SYNCBN_TESTS_NATIVE_SCENARIOS_DTYPES_H_
#define GLUON_SYNCBN_TESTS_NATIVE_SCENARIOS_DTYPES_H_

#include <vector>

#include "fake_mxnet/types.h"

namespace gluon_syncbn::scenarios {

/// The bytes of `values` rounded to `dtype`, and back.
std::vector<unsigned char> encode(const std::vector<double>& values, int dtype);
std::vector<double> decode(const std::vector<unsigned char>& bytes, int dtype);

}  // namespace gluon_syncbn::scenarios

#endif  // GLUON_SYNCBN_TESTS_NATIVE_SCENARIOS_DTYPES_H_
