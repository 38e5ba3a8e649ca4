#include <string>

#include "common/error.h"
#include "norm/invertible.h"
#include "operator/attributes.h"

namespace gluon_syncbn::op {

void Attributes::check_combinations() const {
  const std::string layer = this->layer();
  if (inplace && !is_invertible(activation)) {
    throw Error(layer + ": attribute inplace=True takes an activation that can be inverted: " +
                invertible_activations());
  }
  if (inplace && shortcut) {
    throw Error(layer +
                ": attributes inplace=True and shortcut=True exclude each other; the terms "
                "of a sum are not recoverable from the output");
  }
  const bool meets_by_key = num_devices > 1 && scope == Scope::kKey;
  if (key.empty() && (meets_by_key || crosses_processes())) {
    throw Error(layer +
                ": attribute key is required if num_devices > 1 or process_set is given; "
                "devices meet under it");
  }
  if (num_devices_known && num_devices % group_size() != 0) {
    throw Error(layer + ": sync_group_size=" + std::to_string(group_size()) +
                " should divide num_devices=" + std::to_string(num_devices));
  }
  if (!device_ids.empty() && device_ids.size() != num_devices) {
    throw Error(layer + ": attribute device_ids has " + std::to_string(device_ids.size()) +
                " devices where num_devices=" + std::to_string(num_devices));
  }
  if (sync_group_size && crosses_processes()) {
    throw Error(layer + ": sync_group_size=" + std::to_string(group_size()) +
                " cannot be combined with other processes; make the groups of process sets");
  }
}

}  // namespace gluon_syncbn::op
