#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace fake_cuda::ptx {

enum class Access { kRead, kWrite, kAtomic };

/// A thread between two barriers of its block.
struct Place {
  std::uint32_t block;
  std::uint16_t thread;
  std::uint16_t barriers;
};

/// Finds accesses whose order no barrier decides, in whatever order they come.
class Hazards {
 public:
  /// Returns whether bytes may be accessed here, beside all accesses before.
  bool allows(std::uint64_t address, std::size_t bytes, Access access, Place place);

 private:
  static constexpr Place kNowhere = {~0u, 0, 0};
  /// Of two bytes: no array has smaller elements. Of readers, two suffice: one of them is not the
  /// thread that writes.
  struct History {
    Place write = kNowhere;
    Place read[2] = {kNowhere, kNowhere};
    bool write_is_atomic = false;

    bool allows(Access access, Place place);
  };
  using Line = std::array<History, 32>;
  std::unordered_map<std::uint64_t, Line> lines_;
};

}  // namespace fake_cuda::ptx
