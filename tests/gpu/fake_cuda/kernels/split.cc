// numpy.split of MXNet 2: mxnet_generic_kernel<SplitKernel, types...>(number of elements, in, outs,
//     where each part begins, number of parts, size of the axis, elements from one to the next
//     along it)

#include <cstddef>
#include <cstring>
#include <vector>

#include "kernels/forms.h"

namespace fake_cuda {

Task split(const Launch& launch) {
  if (launch.name.head != "mxnet_generic_kernel") return {};
  if (launch.name.arguments[0].head != "SplitKernel") return {};
  const std::size_t bytes = Values(launch.name.arguments[1], launch.arguments[1]).bytes();
  return [bytes, size = static_cast<std::size_t>(launch.argument<int>(0)),
          in = launch.argument<const char*>(1), outs = launch.argument<char**>(2),
          begins = launch.argument<const std::size_t*>(3), parts = launch.argument<std::size_t>(4),
          axis = launch.argument<std::size_t>(5), step = launch.argument<std::size_t>(6)] {
    std::vector<std::size_t> written(parts, 0);
    for (std::size_t i = 0; i < size; ++i) {
      const std::size_t at = i / step % axis;
      std::size_t part = parts - 1;
      while (begins[part] > at) --part;
      std::memcpy(outs[part] + written[part]++ * bytes, in + i * bytes, bytes);
    }
  };
}

}  // namespace fake_cuda
