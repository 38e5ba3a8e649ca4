#include "core/cuda/part.h"

#include <algorithm>
#include <string>
#include <utility>

namespace gluon_syncbn::cuda {

const double* Part::read_by(Gpu* reader, const std::function<double*(std::size_t)>& room) const {
  if (!message.written) {
    double* copy = room(doubles);
    reader->stream()->copy(copy, message.values(), doubles * sizeof(double));
    return copy;
  }
  if (reader != gpu) reader->stream()->wait(*message.written);
  return message.values();
}

void Part::fetch(Then then) const {
  try {
    const auto copy = std::make_shared<Pool<Memory>::Lease>(gpu->host_memory(doubles));
    gpu->stream()->copy((*copy)->data(), message.values(), doubles * sizeof(double));
    gpu->when_done([copy, then, size = doubles, count = count](const std::string& error) {
      FlatPart part;
      if (error.empty()) {
        const auto* values = static_cast<const double*>((*copy)->data());
        part = {count, {values, values + size}};
      }
      copy->reset();  // what comes next may need such memory
      then(part, error);
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
