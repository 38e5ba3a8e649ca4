#include "core/cuda/part.h"

#include <algorithm>
#include <string>
#include <utility>

namespace gluon_syncbn::cuda {

void Part::fetch(Then then) const {
  try {
    const auto copy = std::make_shared<Pool<Memory>::Lease>(gpu->host_memory(doubles));
    gpu->stream()->copy((*copy)->data(), message.values(), doubles * sizeof(double));
    gpu->when_done([copy, then, size = doubles, count = count](const std::string& error) {
      if (!error.empty()) return then({}, error);
      const auto* values = static_cast<const double*>((*copy)->data());
      then({count, {values, values + size}}, "");
    });
  } catch (const std::exception& error) {
    then({}, error.what());
  }
}

std::shared_ptr<const RemotePart> Part::with(const FlatPart& part) const {
  auto memory = gpu->host_memory(part.values.size());
  std::copy(part.values.begin(), part.values.end(), static_cast<double*>(memory->data()));
  return std::make_shared<const Part>(gpu, Gpu::Message{std::move(memory), {}}, part.values.size(),
                                      part.count);
}

}  // namespace gluon_syncbn::cuda
