#ifndef GLUON_SYNCBN_DISTRIBUTED_CROSSING_H_
#define GLUON_SYNCBN_DISTRIBUTED_CROSSING_H_

#include <functional>
#include <memory>
#include <string>

#include "common/result.h"

namespace gluon_syncbn {

/// Takes what the devices of this process have merged to the other processes, and brings back what
/// all have merged.
template <class Part>
class Crossing {
 public:
  using Then = std::function<void(const Outcome<Part>&)>;

  virtual ~Crossing() = default;
  /// Calls `then` exactly once, now or later, from any thread. Does not throw.
  virtual void cross(std::shared_ptr<const Part> own, Then then) = 0;
  /// Tells the other processes that this one will bring nothing, and why.
  virtual void cancel(const std::string& error) = 0;
  /// Who waits for whom, in whole sentences, for a message.
  virtual std::string describe() const = 0;
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_DISTRIBUTED_CROSSING_H_
