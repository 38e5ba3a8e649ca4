#pragma once

#include <cstddef>
#include <optional>

namespace fake_cuda {

/// Memory that CUDA knows.
struct Allocation {
  char* begin = nullptr;
  std::size_t bytes = 0;
  int ordinal = -1;  ///< of the device; -1: memory of the host that is pinned
};

/// New memory holds bytes that are no number in any format.
constexpr int kFresh = 0xff;

Allocation allocate(std::size_t bytes, int ordinal);
/// Takes an allocation out of the books, by its beginning; nothing where there is none.
std::optional<Allocation> forget(const void* begin);
/// Ends the process where something was written after the end.
void release(const Allocation& allocation);

/// The allocation that an address lies in.
std::optional<Allocation> find(const void* address);

}  // namespace fake_cuda
