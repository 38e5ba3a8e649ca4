#include "distributed/process_group_registry.h"

#include <map>
#include <mutex>
#include <string>

#include "common/error.h"
#include "common/per_process.h"
#include "distributed/roll_call.h"

namespace gluon_syncbn {
namespace {

struct Groups {
  std::mutex mutex;
  std::map<int, std::shared_ptr<RollCall>> by_id;
};

}  // namespace

void add_process_group(const std::shared_ptr<ProcessGroup>& group) {
  auto& groups = PerProcess<Groups>::instance();
  const std::lock_guard<std::mutex> lock(groups.mutex);
  auto& roll_call = groups.by_id[group->id()];
  if (!roll_call || roll_call->describe() != group->describe()) {
    // The library of the processes may have been initialized again with other processes.
    if (roll_call) roll_call->end();
    roll_call = std::make_shared<RollCall>(group);
  }
  roll_call->begin();
}

std::shared_ptr<ProcessGroup> process_group(int id) {
  auto& groups = PerProcess<Groups>::instance();
  const std::lock_guard<std::mutex> lock(groups.mutex);
  const auto found = groups.by_id.find(id);
  if (found == groups.by_id.end()) {
    throw Error("process set " + std::to_string(id) +
                " is not known in this process: call gluon_syncbn.init() after hvd.init()");
  }
  return found->second;
}

}  // namespace gluon_syncbn
