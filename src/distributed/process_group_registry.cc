#include "distributed/process_group_registry.h"

#include <map>
#include <mutex>
#include <string>

#include "common/error.h"
#include "common/per_process.h"

namespace gluon_syncbn {
namespace {

struct Groups {
  std::mutex mutex;
  std::map<int, std::shared_ptr<ProcessGroup>> by_id;
};

}  // namespace

void add_process_group(const std::shared_ptr<ProcessGroup>& group) {
  auto& groups = PerProcess<Groups>::instance();
  const std::lock_guard<std::mutex> lock(groups.mutex);
  auto& known = groups.by_id[group->id()];
  // The library of the processes may have been initialized again with other processes.
  if (!known || known->describe() != group->describe()) known = group;
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
