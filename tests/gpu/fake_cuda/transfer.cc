#include "transfer.h"

#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "context.h"
#include "control.h"
#include "memory.h"

namespace fake_cuda {
namespace {

struct End {
  std::optional<Allocation> allocation;

  explicit End(const void* address) : allocation(find(address)) {}
  bool on_device() const { return allocation && allocation->ordinal >= 0; }
  bool pinned() const { return allocation && allocation->ordinal < 0; }
  bool holds(const char* begin, std::size_t bytes) const {
    return !allocation || begin + bytes <= allocation->begin + allocation->bytes;
  }
};

std::size_t span(std::size_t pitch, std::size_t width, std::size_t height) {
  return height == 0 ? 0 : pitch * (height - 1) + width;
}

bool fits(cudaMemcpyKind kind, const End& to, const End& from) {
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !to.on_device() && !from.on_device();
    case cudaMemcpyHostToDevice:
      return to.on_device() && !from.on_device();
    case cudaMemcpyDeviceToHost:
      return !to.on_device() && from.on_device();
    case cudaMemcpyDeviceToDevice:
      return to.on_device() && from.on_device();
    default:
      return true;
  }
}

void move(const Block& block) {
  for (std::size_t row = 0; row < block.height; ++row) {
    std::memcpy(block.to + row * block.to_pitch, block.from + row * block.from_pitch, block.width);
  }
}

}  // namespace

cudaError_t copy(Block block, cudaMemcpyKind kind, cudaStream_t stream) {
  if (block.width == 0 || block.height == 0) return cudaSuccess;
  const End to(block.to);
  const End from(block.from);
  if (!fits(kind, to, from) ||
      !to.holds(block.to, span(block.to_pitch, block.width, block.height)) ||
      !from.holds(block.from, span(block.from_pitch, block.width, block.height))) {
    return cudaErrorInvalidValue;
  }
  const bool between_hosts = !to.on_device() && !from.on_device();
  if (to.on_device() && !from.on_device() && !from.pinned()) {
    std::vector<char> staged;
    for (std::size_t row = 0; row < block.height; ++row) {
      const char* begin = block.from + row * block.from_pitch;
      staged.insert(staged.end(), begin, begin + block.width);
    }
    block.from_pitch = block.width;
    return put(stream, {"copy", [block, staged = std::move(staged)]() mutable {
                          block.from = staged.data();
                          move(block);
                        }});
  }
  const cudaError_t status = put(stream, {"copy", [block] { move(block); }});
  if (status != cudaSuccess) return status;
  const bool to_pageable = !to.on_device() && !to.pinned();
  return to_pageable || between_hosts ? synchronize(stream) : cudaSuccess;
}

Block row(void* to, const void* from, std::size_t bytes) {
  return {static_cast<char*>(to), static_cast<const char*>(from), bytes, bytes, bytes, 1};
}

cudaError_t set(void* begin, int value, std::size_t bytes, cudaStream_t stream) {
  const End end(begin);
  if (!end.allocation || !end.holds(static_cast<char*>(begin), bytes)) return cudaErrorInvalidValue;
  return put(stream, {"memset", [=] { std::memset(begin, value, bytes); }});
}

cudaError_t take(void** begin, std::size_t bytes, int ordinal) {
  *begin = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (ordinal >= 0) {
    const cudaError_t status = device(ordinal).take_memory(bytes);
    if (status != cudaSuccess) return status;
  }
  *begin = allocate(bytes, ordinal).begin;
  return cudaSuccess;
}

cudaError_t give_back(void* begin, bool on_device) {
  if (!begin) return cudaSuccess;
  const auto known = find(begin);
  if (!known || known->begin != begin || (known->ordinal >= 0) != on_device) {
    return cudaErrorInvalidValue;
  }
  // Work that is under way may use it.
  wait_in_driver(on_device ? &device(known->ordinal) : nullptr);
  const auto allocation = forget(begin);
  if (!allocation) return cudaErrorInvalidValue;
  if (on_device) device(allocation->ordinal).give_back_memory(allocation->bytes);
  release(*allocation);
  return on_device ? device(allocation->ordinal).error() : cudaSuccess;
}

}  // namespace fake_cuda
