#include "ptx/hazards.h"

namespace fake_cuda::ptx {
namespace {

bool is_same(Place a, Place b) { return a.block == b.block && a.thread == b.thread; }

}  // namespace

bool Hazards::History::allows(Access access, Place place) {
  const auto is_ordered = [place](Place before) {
    return before.block == kNowhere.block || is_same(before, place) ||
           (before.block == place.block && before.barriers != place.barriers);
  };
  const bool is_atomic = access == Access::kAtomic;
  bool allowed = is_ordered(write) || (is_atomic && write_is_atomic);
  if (access == Access::kRead) {
    if (!is_same(read[0], place)) read[1] = read[0];
    read[0] = place;
    return allowed;
  }
  allowed = allowed && is_ordered(read[0]) && is_ordered(read[1]);
  write = place;
  write_is_atomic = is_atomic;
  return allowed;
}

bool Hazards::allows(std::uint64_t address, std::size_t bytes, Access access, Place place) {
  constexpr std::uint64_t kLine = 2 * std::tuple_size_v<Line>;
  // An access is aligned, so it lies in one line.
  Line& line = lines_[address / kLine];
  bool allowed = true;
  for (std::uint64_t i = address % kLine / 2; 2 * i < address % kLine + bytes; ++i) {
    allowed = line[i].allows(access, place) && allowed;
  }
  return allowed;
}

}  // namespace fake_cuda::ptx
