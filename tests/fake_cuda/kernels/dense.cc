// The bias of a dense layer, by src/operator/nn/fully_connected-inl.h in MXNet.

#include "kernels/forms.h"

namespace fake_cuda {
namespace {

Name pointer_to(const Name& type) { return {type.head + "*", {}}; }

/// add_bias_kernel<type, type of accesses>(matrix, bias, rows, columns)
Task add(const Launch& launch) {
  const Name type = pointer_to(launch.name.arguments[0]);
  const Values matrix(type, launch.arguments[0]);
  const Values bias(type, launch.arguments[1]);
  const auto rows = launch.argument<std::int64_t>(2);
  const auto columns = launch.argument<std::int64_t>(3);
  return [=] {
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      matrix.set(i, matrix.get(i) + bias.get(i % columns));
    }
  };
}

/// AddBiasGradKernelPhase1<type of accesses, type, sum's type>(sums, gradient, columns, rows): the
/// blocks of a column of the grid share the rows
Task gradient_of_blocks(const Launch& launch) {
  const Values sums(pointer_to(launch.name.arguments[2]), launch.arguments[0]);
  const Values gradient(pointer_to(launch.name.arguments[1]), launch.arguments[1]);
  const auto columns = launch.argument<std::int64_t>(2);
  const auto rows = launch.argument<std::int64_t>(3);
  const std::int64_t blocks = launch.grid.y;
  return [=] {
    const std::int64_t share = (rows + blocks - 1) / blocks;
    for (std::int64_t i = 0; i < blocks * columns; ++i) {
      double sum = 0;
      for (std::int64_t row = i / columns * share; row < (i / columns + 1) * share; ++row) {
        if (row < rows) sum += gradient.get(row * columns + i % columns);
      }
      sums.set(i, sum);
    }
  };
}

/// AddBiasGradKernelPhase2<type, sum's type>(sums, out, columns, blocks, request)
Task gradient(const Launch& launch) {
  const Values sums(pointer_to(launch.name.arguments[1]), launch.arguments[0]);
  const Values out(pointer_to(launch.name.arguments[0]), launch.arguments[1]);
  const auto columns = launch.argument<int>(2);
  const auto blocks = launch.argument<int>(3);
  const auto request = launch.argument<int>(4);
  return [=] {
    for (int column = 0; column < columns; ++column) {
      double sum = 0;
      for (int block = 0; block < blocks; ++block) sum += sums.get(column + block * columns);
      out.write(column, request, sum);
    }
  };
}

}  // namespace

Task dense(const Launch& launch) {
  if (launch.name.head == "add_bias_kernel") return add(launch);
  if (launch.name.head == "AddBiasGradKernelPhase1") return gradient_of_blocks(launch);
  return launch.name.head == "AddBiasGradKernelPhase2" ? gradient(launch) : Task();
}

}  // namespace fake_cuda
