#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace gluon_syncbn {

/// The devices that synchronize with each other by `sync_group_size`, and with no others.
struct DeviceGroup {
  std::size_t number = 0;
  std::vector<int> device_ids;
};

/// Whether groups of `size` leave no device out.
inline bool groups_are_whole(std::size_t num_devices, std::size_t size) {
  return num_devices % size == 0;
}

/// The group of a device, if groups of `size` are cut from `device_ids` in their order; nothing if
/// the device is in no group.
std::optional<DeviceGroup> group_of(int device_id, const std::vector<int>& device_ids,
                                    std::size_t size);

}  // namespace gluon_syncbn
