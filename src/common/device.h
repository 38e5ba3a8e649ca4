#pragma once

#include <string>
#include <tuple>

#include "common/list_text.h"

namespace gluon_syncbn {

/// One device of a round. Partial statistics merge in the order of devices, so that results do not
/// depend on which device arrives first.
struct Device {
  std::string type;
  int index = 0;

  bool operator<(const Device& other) const {
    return std::tie(type, index) < std::tie(other.type, other.index);
  }
  bool operator==(const Device& other) const {
    return std::tie(type, index) == std::tie(other.type, other.index);
  }
  std::string name() const { return type + "(" + std::to_string(index) + ")"; }
};

/// Returns "cpu(0), cpu(1)" for a range of pairs whose first element is a Device.
template <class DeviceMap>
std::string device_list(const DeviceMap& devices) {
  std::string list;
  for (const auto& entry : devices) {
    append_item(&list, entry.first.name());
  }
  return list.empty() ? "none" : list;
}

}  // namespace gluon_syncbn
