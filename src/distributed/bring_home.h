#ifndef GLUON_SYNCBN_DISTRIBUTED_BRING_HOME_H_
#define GLUON_SYNCBN_DISTRIBUTED_BRING_HOME_H_

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "norm/moments.h"

namespace gluon_syncbn {

/// Calls `then` exactly once, now or later, from any thread, with `part` on the host: the remote
/// parts of all devices, merged in their order. Does not throw.
template <class Part>
void bring_home(const Part& part, const RemotePart::Then& then) {
  if (part.remote.empty()) return then(part.flat(), "");

  struct Arrivals {
    std::mutex mutex;
    std::vector<Part> parts;
    std::size_t missing = 0;
    std::string error;
  };
  const auto arrivals = std::make_shared<Arrivals>();
  arrivals->missing = part.remote.size();
  arrivals->parts.resize(part.remote.size());
  for (std::size_t i = 0; i < part.remote.size(); ++i) {
    part.remote[i]->fetch([arrivals, i, then](const FlatPart& flat, const std::string& error) {
      {
        const std::lock_guard<std::mutex> lock(arrivals->mutex);
        arrivals->parts[i] = Part::of(flat);
        if (arrivals->error.empty()) arrivals->error = error;
        if (--arrivals->missing > 0) return;
      }
      if (!arrivals->error.empty()) return then({}, arrivals->error);
      std::vector<const Part*> order;
      for (const Part& each : arrivals->parts) order.push_back(&each);
      then(Part::merge(order).flat(), "");
    });
  }
}

/// `merged` for the devices that left `remote`, or as it is where these compute on the host. Throws
/// Error.
template <class Part>
Part send_out(const Part& merged, const RemoteParts& remote) {
  if (remote.empty()) return merged;
  const FlatPart flat = merged.flat();
  Part part = Part::of({flat.count, {}});
  part.remote = {remote.front()->with(flat)};
  return part;
}

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_DISTRIBUTED_BRING_HOME_H_
