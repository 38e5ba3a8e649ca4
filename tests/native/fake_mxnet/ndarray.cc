#include "fake_mxnet/ndarray.h"

#include <utility>

#include "fake_mxnet/device_kind.h"

namespace gluon_syncbn::host {

Chunk::Chunk(const Context& context, std::size_t bytes)
    : context_(context), bytes_(bytes), owned_(true) {}

Chunk::Chunk(void* data, const Context& context)
    : context_(DeviceKind::of(context.dev_type).context_of_memory(context.dev_id)),
      owned_(false),
      data_(data) {}

// ndarray.cc, NDArray::Chunk::~Chunk.
Chunk::~Chunk() {
  Engine::get().delete_variable(
      [context = context_, data = owned_ ? data_ : nullptr] {
        if (data) DeviceKind::of(context.dev_type).release(context.dev_id, data);
      },
      context_, variable_);
}

void* Chunk::data() {
  if (!data_) data_ = DeviceKind::of(context_.dev_type).allocate(context_.dev_id, bytes_);
  return data_;
}

NDArray NDArray::make(const Shape& shape, int dtype, const Context& context) {
  NDArray array{nullptr, shape, dtype, {}};
  array.chunk = std::make_shared<Chunk>(context, array.size() * size_of(dtype));
  return array;
}

NDArray NDArray::alias(int device) const {
  const Context here{context().dev_type, device};
  return {std::make_shared<Chunk>(chunk->data(), here), shape, dtype, {}};
}

std::size_t NDArray::size() const {
  std::size_t size = 1;
  for (const int dim : shape) size *= static_cast<std::size_t>(dim);
  return size;
}

// ndarray.h, WaitToWrite: an empty operation, on a worker of cpu(0), that waits for all readers.
void NDArray::wait_to_write() const {
  Engine::get().push_sync([](const RunContext&) {}, {}, {}, {variable()});
  wait_to_read();
}

// ndarray.cc, SyncCopyFromCPU and SyncCopyToCPU: on the calling thread for CPU contexts, else an
// operation of the device.
void NDArray::copy_from_host(const void* data) const {
  const auto copy = [&](const RunContext&) {
    DeviceKind::of(context().dev_type)
        .copy_from_host(context().dev_id, chunk->data(), data, size() * size_of(dtype));
  };
  if (context().dev_type == kCPU) {
    wait_to_write();
    copy({});
  } else {
    Engine::get().push_sync(copy, context(), {}, {variable()}, Property::kCopyToGPU);
    wait_to_read();
  }
}

void NDArray::copy_to_host(void* data) const {
  const auto copy = [&](const RunContext&) {
    DeviceKind::of(context().dev_type)
        .copy_to_host(context().dev_id, data, chunk->data(), size() * size_of(dtype));
  };
  if (context().dev_type == kCPU) {
    wait_to_read();
    copy({});
  } else {
    Engine::get().push_sync(copy, context(), {variable()}, {}, Property::kCopyFromGPU);
    wait_to_write();
  }
}

}  // namespace gluon_syncbn::host
