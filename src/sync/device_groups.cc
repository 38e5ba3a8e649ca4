#include "sync/device_groups.h"

#include <algorithm>

namespace gluon_syncbn {

std::optional<DeviceGroup> group_of(int device_id, const std::vector<int>& device_ids,
                                    std::size_t size) {
  const auto found = std::find(device_ids.begin(), device_ids.end(), device_id);
  if (found == device_ids.end()) return std::nullopt;
  const auto number = static_cast<std::size_t>(found - device_ids.begin()) / size;
  const auto first = device_ids.begin() + static_cast<std::ptrdiff_t>(number * size);
  return DeviceGroup{number, {first, first + static_cast<std::ptrdiff_t>(size)}};
}

}  // namespace gluon_syncbn
