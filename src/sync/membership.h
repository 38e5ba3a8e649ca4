#ifndef GLUON_SYNCBN_SYNC_MEMBERSHIP_H_
#define GLUON_SYNCBN_SYNC_MEMBERSHIP_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/device.h"

namespace gluon_syncbn {

/// The devices of a synchronization group and the round in which each of them is next.
///
/// Rounds are counted on each device. A device that is never called in one step therefore falls
/// behind, and would meet its peers' calls of one step with its own of another forever. What is
/// done about it:
///
/// - A round that times out brings the devices that were absent up to date: their next call joins
///   the round that its peers join next. Only calls made after the timeout count as such. A call
///   that was made before, and whose operation is merely late, joins the round that has failed and
///   gets its error, and so do those behind it theirs.
/// - A round that fails at once, because one device has failed, waits for nobody, and its other
///   devices are not late. Those that still come get its error. If a device of the failed round is
///   called again first, then the step was broken off, and absent devices are brought up to date.
///
/// A call is made when the host creates its operator. Hosts that use one operator for many calls
/// (static_shape, Module) do not say when a call was made; such a call counts as one made after
/// the timeout.
class Membership {
 public:
  struct Options {
    std::string option = "num_devices";  ///< what users know the number of devices as
    std::vector<int> device_ids;         ///< of the devices that should come; empty: not known
    /// Who waits in vain somewhere else, in whole sentences, for a message.
    std::function<std::string()> elsewhere = [] { return ""; };
  };

  Membership(std::string layer, std::size_t num_devices, Options options)
      : layer_(std::move(layer)), num_devices_(num_devices), options_(std::move(options)) {}

  using Ticket = std::uint64_t;
  static constexpr Ticket kJustMade = std::numeric_limits<Ticket>::max();

  /// A call on `device` has been made and will come, unless something before it fails.
  Ticket announce(const Device& device);

  /// The round of a call, and the first of those that are left out to bring its device up to date.
  struct Place {
    std::uint64_t first_skipped = 0;
    std::uint64_t number = 0;
  };
  /// Throws Error where there are more devices than there should be.
  Place next(const Device& device, Ticket ticket);

  void saw_inference(const Device& device);
  void failed_at_once(std::uint64_t number);
  void timed_out();

  std::size_t num_devices() const { return num_devices_; }
  const std::string& layer() const { return layer_; }
  const std::string& option() const { return options_.option; }
  std::string elsewhere() const { return options_.elsewhere(); }

  /// "cpu(0) (3 training forwards)" for all of `present`.
  std::string present_text(const std::set<Device>& present, bool counts) const;
  /// The same for all others, known and unknown.
  std::string missing_text(const std::set<Device>& present, bool counts) const;
  /// Those of the others that were called in inference mode last; "" where none was.
  std::string inferring_text(const std::set<Device>& present) const;
  /// Those that have joined the round `number`.
  std::string joined_text(std::uint64_t number) const;

 private:
  struct Member {
    std::uint64_t next = 0;
    std::uint64_t forwards = 0;    // in training mode
    std::uint64_t inferences = 0;  // since the last of these
  };

  void bring_up_to_date();
  std::vector<Device> never_called(const std::set<Device>& known) const;
  std::string text(const Device& device, const Member& member, bool counts) const;

  const std::string layer_;
  const std::size_t num_devices_;
  const Options options_;
  mutable std::mutex mutex_;
  std::map<Device, Member> members_;
  std::map<Device, std::uint64_t> strangers_;  // not members: inferences only
  Ticket made_ = 0;                            // calls
  Ticket first_new_ = 0;                       // the first call after devices were left behind
  std::uint64_t floor_ = 0;                    // the round that such calls join at least
  std::optional<std::uint64_t> failed_;        // the last round that failed at once
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_SYNC_MEMBERSHIP_H_
