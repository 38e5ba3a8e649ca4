#include "cuda/part.h"

#include <algorithm>
#include <string>
#include <utility>

namespace gluon_syncbn::cuda {
namespace {

FlatPart flat(std::int64_t count, const Memory& memory, std::size_t doubles) {
  const auto* values = static_cast<const double*>(memory.data());
  return {count, {values, values + doubles}};
}

}  // namespace

const double* Part::read_by(Gpu* reader, const std::function<double*(std::size_t)>& room) const {
  if (message.written) {
    if (reader != gpu) reader->stream()->wait(*message.written);
    if (is_on_host() || reader->reads(*gpu)) return message.values();
    // A copy, which CUDA takes through the host, is slow. The next message should not need one.
    gpu->keep_messages_on_host();
  }
  double* copy = room(doubles);
  reader->stream()->copy(copy, message.values(), doubles * sizeof(double));
  return copy;
}

void Part::fetch(Then then) const {
  if (is_on_host() && message.written) {
    // Kept until it is read; what comes after that may need such memory.
    gpu->when_reached(message.written.get(),
                      [self = shared_from_this(), then](const std::string& error) mutable {
                        FlatPart part;
                        if (error.empty()) {
                          part = flat(self->count, *self->message.memory, self->doubles);
                        }
                        self.reset();
                        then(part, error);
                      });
    return;
  }
  try {
    const auto copy = std::make_shared<Pool<Memory>::Lease>(gpu->host_memory(doubles));
    gpu->stream()->copy((*copy)->data(), message.values(), doubles * sizeof(double));
    gpu->when_done([copy, then, size = doubles, count = count](const std::string& error) {
      FlatPart part;
      if (error.empty()) part = flat(count, **copy, size);
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
