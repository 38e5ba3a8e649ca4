#include "memory.h"

#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <string>

#include "control.h"

namespace fake_cuda {
namespace {

constexpr std::size_t kAlignment = 512;
#ifdef __SANITIZE_ADDRESS__
constexpr std::size_t kGuard = 0;  // the sanitizer sees more, and sooner
#else
constexpr std::size_t kGuard = kAlignment;
#endif
constexpr unsigned char kGuardByte = 0xa5;

struct Books {
  std::mutex mutex;
  std::map<const char*, Allocation, std::less<>> allocations;  // by their beginnings
};
Books& books() {
  static Books& all = *new Books;
  return all;
}

}  // namespace

Allocation allocate(std::size_t bytes, int ordinal) {
  // As aligned as CUDA's, and no more: the bytes after it belong to no array.
  auto* begin = static_cast<char*>(::operator new(bytes + kGuard, std::align_val_t(kAlignment)));
  std::memset(begin, kFresh, bytes);
  std::memset(begin + bytes, kGuardByte, kGuard);
  const Allocation allocation{begin, bytes, ordinal};
  const std::lock_guard<std::mutex> lock(books().mutex);
  books().allocations[begin] = allocation;
  return allocation;
}

std::optional<Allocation> forget(const void* begin) {
  const std::lock_guard<std::mutex> lock(books().mutex);
  const auto found = books().allocations.find(static_cast<const char*>(begin));
  if (found == books().allocations.end()) return std::nullopt;
  const Allocation allocation = found->second;
  books().allocations.erase(found);
  return allocation;
}

void release(const Allocation& allocation) {
  for (std::size_t i = 0; i < kGuard; ++i) {
    if (static_cast<unsigned char>(allocation.begin[allocation.bytes + i]) == kGuardByte) continue;
    die("something was written " + std::to_string(i) + " bytes after an array of " +
        std::to_string(allocation.bytes) + " bytes");
  }
  std::memset(allocation.begin, kFresh, allocation.bytes);
  ::operator delete(allocation.begin, std::align_val_t(kAlignment));
}

std::optional<Allocation> find(const void* address) {
  const auto* at = static_cast<const char*>(address);
  const std::lock_guard<std::mutex> lock(books().mutex);
  auto next = books().allocations.upper_bound(at);
  if (next == books().allocations.begin()) return std::nullopt;
  const Allocation& before = (--next)->second;
  if (std::less<>{}(at, before.begin + before.bytes) || at == before.begin) return before;
  return std::nullopt;
}

}  // namespace fake_cuda
