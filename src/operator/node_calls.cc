#include "operator/node_calls.h"

#include "common/error.h"

namespace gluon_syncbn::op {

void NodeCalls::begin(const Device& device, const void* running_mean,
                      const std::shared_ptr<void>& op, bool ran_before) {
  const std::lock_guard<std::mutex> lock(mutex_);
  OfDevice& last = devices_[device];
  const auto other = last.op.lock();
  const bool is_same_model = last.running_mean == running_mean;
  const bool is_called_twice = other && other != op && is_same_model && last.awaits_backward &&
                               (ran_before || last.ran_before);
  // Before errors, so that programs can go on after them.
  last.running_mean = running_mean;
  last.op = op;
  last.ran_before = ran_before;
  last.awaits_backward = other != op;
  if (last.models.add(running_mean)) {
    throw Error("two models were made of one symbol, and train on " + device.name() +
                " in turns; MXNet keeps no order between them. Load the symbol once for each, as "
                "with mx.sym.load_json(symbol.tojson())");
  }
  if (!is_called_twice) return;
  throw Error("a network hybridized with static_shape=True was called twice on " + device.name() +
              " before backward; MXNet keeps no order between these calls. Hybridize it without "
              "static_shape");
}

void NodeCalls::end(const Device& device, const std::shared_ptr<void>& op) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = devices_.find(device);
  if (found != devices_.end() && found->second.op.lock() == op) found->second.op.reset();
}

void NodeCalls::begin_alone(const Device& device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  devices_[device];
  if (!alone_.add(device)) return;
  throw Error(
      "num_devices=1, but " + device_list(devices_) +
      " train in turns, each on its own. num_devices should be the number of devices in "
      "use. Call gluon_syncbn.convert_sync_batchnorm(net) after you load a network on other "
      "contexts, and hybridize() after you move one");
}

}  // namespace gluon_syncbn::op
