#include "operator/attribute_combinations.h"

#include <string>

#include "common/error.h"
#include "norm/invertible.h"

namespace gluon_syncbn::op {

void check_combinations(const Attributes& attributes) {
  const std::string layer = attributes.layer();
  if (attributes.inplace && !is_invertible(attributes.activation)) {
    throw Error(layer + ": attribute inplace=True takes an activation that can be inverted: " +
                invertible_activations());
  }
  if (attributes.inplace && attributes.shortcut) {
    throw Error(layer +
                ": attributes inplace=True and shortcut=True exclude each other; the terms "
                "of a sum are not recoverable from the output");
  }
  const bool meets_by_key = attributes.num_devices > 1 && attributes.scope == Scope::kKey;
  if (attributes.key.empty() && (meets_by_key || attributes.crosses_processes())) {
    throw Error(layer +
                ": attribute key is required if num_devices > 1 or process_set is given; "
                "devices meet under it");
  }
  if (!groups_are_whole(attributes.num_devices, attributes.group_size())) {
    throw Error(layer + ": sync_group_size=" + std::to_string(attributes.group_size()) +
                " should divide num_devices=" + std::to_string(attributes.num_devices));
  }
  if (!attributes.device_ids.empty() && attributes.device_ids.size() != attributes.num_devices) {
    throw Error(layer + ": attribute device_ids has " +
                std::to_string(attributes.device_ids.size()) +
                " devices where num_devices=" + std::to_string(attributes.num_devices));
  }
  if (attributes.sync_group_size && attributes.crosses_processes()) {
    throw Error(layer + ": sync_group_size=" + std::to_string(attributes.group_size()) +
                " cannot be combined with other processes; make the groups of process sets");
  }
}

}  // namespace gluon_syncbn::op
