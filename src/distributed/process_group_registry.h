#pragma once

#include <memory>

#include "distributed/process_group.h"

namespace gluon_syncbn {

/// Lets operators name `group` by its id. All processes of the group should call this at about the
/// same time. A group that has other processes takes the place of an earlier one with the same id.
/// Throws Error if its roll calls cannot start.
void add_process_group(const std::shared_ptr<ProcessGroup>& group);

/// The group with this id, in a RollCall. Throws Error if there is none.
std::shared_ptr<ProcessGroup> process_group(int id);

}  // namespace gluon_syncbn
