#ifndef GLUON_SYNCBN_COMMON_DEVICE_H_
#define GLUON_SYNCBN_COMMON_DEVICE_H_

#include <string>
#include <tuple>

#include "common/list_text.h"

namespace gluon_syncbn {

/// One device of a round. The order of devices is the order in which their parts are merged, so
/// that results do not depend on who arrives first.
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

/// "cpu(0), cpu(1)" for any range of pairs whose first element is a Device.
template <class DeviceMap>
std::string device_list(const DeviceMap& devices) {
  std::string list;
  for (const auto& entry : devices) {
    append_item(&list, entry.first.name());
  }
  return list.empty() ? "none" : list;
}

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_COMMON_DEVICE_H_
