#ifndef GLUON_SYNCBN_CORE_RENDEZVOUS_H_
#define GLUON_SYNCBN_CORE_RENDEZVOUS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "core/device.h"
#include "core/exchange.h"
#include "core/moments.h"

namespace gluon_syncbn {

/// What all devices of a round must agree on.
struct Agreement {
  std::int64_t channels = 0;
  std::string dtype;
  double eps = 0;
  double momentum = 0;

  /// Names the first value that differs as "channels 3 and 4"; nothing where all agree.
  std::optional<std::string> difference(const Agreement& other) const;
};

/// One training forward of one layer on all of its devices, and the backward passes that follow
/// from it. Operators keep the round of their last forward, so that backward meets the peers of
/// that very forward however often the layer is used.
class Round {
 public:
  Round(const std::string& layer, std::uint64_t number, std::size_t num_devices);

  /// Fails the round where `device` does not agree with those that came before it.
  void agree(const Device& device, const Agreement& agreement);

  Exchange<Moments>& forward() { return *forward_; }

  /// The exchange of the next backward pass of `device` through this round: its first call meets
  /// the first calls of its peers, its second call (retain_graph) their second calls.
  std::shared_ptr<Exchange<GradientSums>> next_backward(const Device& device);

 private:
  const std::string what_;
  const std::size_t num_devices_;
  const std::shared_ptr<Exchange<Moments>> forward_;
  std::mutex mutex_;
  std::optional<std::pair<Device, Agreement>> agreement_;
  std::map<Device, std::size_t> backward_calls_;
  std::map<std::size_t, std::pair<std::shared_ptr<Exchange<GradientSums>>, std::size_t>> backwards_;
};

/// Where the devices of one layer meet. Rounds are told apart by counting the training forwards of
/// each device, which its host runs in program order; the order of arrival between devices is free.
class Meeting {
 public:
  Meeting(std::string layer, std::size_t num_devices);

  /// The round of the next training forward of `device`.
  std::shared_ptr<Round> join(const Device& device);

  std::size_t num_devices() const { return num_devices_; }

  /// The meeting that all who name `key` share for as long as one of them holds it.
  static std::shared_ptr<Meeting> named(const std::string& key, const std::string& layer,
                                        std::size_t num_devices);
  /// Number of keys that somebody holds.
  static std::size_t count_named();

 private:
  struct Joined {
    std::shared_ptr<Round> round;
    std::size_t devices = 0;
  };

  const std::string layer_;
  const std::size_t num_devices_;
  std::mutex mutex_;
  std::map<Device, std::uint64_t> members_;
  std::map<std::uint64_t, Joined> open_;
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_CORE_RENDEZVOUS_H_
