#pragma once

#include <memory>

#include "distributed/process_group.h"

namespace gluon_syncbn {

/// Lets operators name `group` by its id. A group that has other processes takes the place of an
/// earlier group with the same id.
void add_process_group(const std::shared_ptr<ProcessGroup>& group);

/// The group with this id. Throws Error if there is none.
std::shared_ptr<ProcessGroup> process_group(int id);

}  // namespace gluon_syncbn
