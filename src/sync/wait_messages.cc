#include "sync/wait_messages.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <sstream>
#include <vector>

#include "common/list_text.h"

namespace gluon_syncbn {
namespace {

// Likely causes, in the words of MXNet's users in Python. The page has all causes.
constexpr const char* kReads =
    "the loop reads a result of one device (asnumpy, asscalar, wait_to_read, waitall, or a new "
    "DataLoader, which calls waitall) before it has called the others; or ";
constexpr const char* kTooMany = "num_devices is larger than the number of devices in use ";
constexpr const char* kNoData =
    "a missing device got no data this step (if a last batch has fewer images than there are "
    "devices, the DataLoader should have last_batch='discard'); or ";
constexpr const char* kEnded =
    "an exception or an interrupt ended a step between two devices, or the thread of one (after "
    "that, call gluon_syncbn.drop_step())";
constexpr const char* kFewer = "; or the step uses fewer devices than before ";
constexpr const char* kMoved =
    "(after you move a hybridized network to other contexts, call hybridize() again)";
constexpr const char* kMoreCallsBehind =
    "a branch that calls the layer was taken on some devices only, or more often on one than on "
    "another; or later steps use fewer devices than the first";
constexpr const char* kNoBackward =
    "backward was called for some devices only (give the losses of all devices to "
    "autograd.backward, or call backward() of each); or the output of the layer does not reach "
    "the loss on a device; or ";
constexpr const char* kBusy =
    "Threads of this process compute, so the missing calls may only be late (a busy machine, slow "
    "data)";

/// Points to the page that lies beside the library, in an installed package.
std::string all_causes() {
  std::string page = "docs/troubleshooting.md";
  Dl_info library;
  if (dladdr(reinterpret_cast<const void*>(&all_causes), &library) && library.dli_fname) {
    const std::string file = library.dli_fname;
    const std::string here = file.substr(0, file.rfind('/') + 1) + page;
    page = access(here.c_str(), R_OK) == 0 ? here : page + " of the project";
  }
  return "All causes: " + page + ", 'A device does not come'.";
}

std::string counted(std::uint64_t number, const std::string& thing) {
  return std::to_string(number) + " " + thing + (number == 1 ? "" : "s");
}

/// "cpu(0) (3 training forwards)". Without `member` only "cpu(0)".
std::string text_of(const Device& device, const Calls::Member* member) {
  if (!member) return device.name();
  std::string text = device.name() + " (" + counted(member->forwards, "training forward");
  if (member->inferences > 0) {
    text += ", then " + std::to_string(member->inferences) + " in inference mode";
  }
  return text + ")";
}

std::string came(const Calls& calls, const std::set<Device>& present, bool counts) {
  std::string list;
  for (const Device& device : present) {
    const auto found = calls.members().find(device);
    append_item(&list, text_of(device, counts && found != calls.members().end() ? &found->second
                                                                                : nullptr));
  }
  return list.empty() ? "none" : list;
}

/// The devices that the layer was made for, which have the type of those that came.
std::set<Device> made_for(const Barrier& barrier, const std::set<Device>& known) {
  std::set<Device> devices;
  if (!known.empty()) {
    for (const int id : barrier.options().device_ids) devices.insert({known.begin()->type, id});
  }
  return devices;
}

/// Returns the devices that are not `known`, or none if the ids are uncertain: a graph may run on
/// other devices than it was made for.
std::vector<Device> never_called(const Barrier& barrier, const std::set<Device>& known) {
  const auto awaited = made_for(barrier, known);
  std::vector<Device> others;
  std::set_difference(awaited.begin(), awaited.end(), known.begin(), known.end(),
                      std::back_inserter(others));
  if (known.size() + others.size() != barrier.num_devices()) others.clear();
  return others;
}

std::string missing(const Barrier& barrier, const Calls& calls, const std::set<Device>& present,
                    bool counts) {
  std::string list;
  std::set<Device> known = present;
  for (const auto& [device, member] : calls.members()) {
    if (known.insert(device).second)
      append_item(&list, text_of(device, counts ? &member : nullptr));
  }
  const std::size_t unknown = barrier.num_devices() - std::min(barrier.num_devices(), known.size());
  const auto others = unknown > 0 ? never_called(barrier, known) : std::vector<Device>();
  for (const Device& device : others) {
    append_item(&list, device.name() + " (never called in training)");
  }
  if (unknown > 0 && others.empty()) {
    append_item(&list, counted(unknown, "device") + " never called in training");
  }
  return list.empty() ? "none" : list;
}

/// The missing devices whose last call was in inference mode.
std::string inferring(const Calls& calls, const std::set<Device>& present) {
  std::string list;
  for (const auto& [device, member] : calls.members()) {
    if (member.inferences > 0 && !present.count(device)) append_item(&list, device.name());
  }
  for (const auto& [device, _] : calls.strangers()) append_item(&list, device.name());
  return list;
}

std::string likely_causes(const Barrier& barrier, const Calls& calls,
                          const std::set<Device>& present) {
  const std::string reads = kReads;
  if (calls.members().size() < barrier.num_devices()) return reads + kTooMany + kMoved;
  std::uint64_t most = 0;
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (const auto& [device, member] : calls.members()) {
    if (present.count(device)) {
      most = std::max(most, member.forwards);
    } else {
      least = std::min(least, member.forwards);
    }
  }
  if (most > least && most - least > 1) return kMoreCallsBehind;
  return reads + kNoData + kEnded + kFewer + kMoved;
}

std::string awaited(const Barrier& barrier, const Wait& wait) {
  if (!wait.processes.empty()) return "the other processes";
  return "all of " + std::to_string(barrier.num_devices()) + " devices";
}

/// Says in whole sentences which devices or processes are missing, and the likeliest causes. Each
/// subject has its own line.
std::string description(const Barrier& barrier, const Wait& wait,
                        const ProgramState& program = {}) {
  if (!wait.processes.empty()) return wait.processes;
  const bool is_forward = wait.direction == Direction::kForward;
  const Calls& calls = wait.calls;
  std::string text = "Came: " + came(calls, wait.present, is_forward) +
                     ". Missing: " + missing(barrier, calls, wait.present, is_forward) + ".\n";
  if (const auto all = made_for(barrier, wait.present);
      is_forward && calls.members().size() < barrier.num_devices() && !all.empty()) {
    text += "The layer was made for " + came(Calls(0), all, false) + ".\n";
  }
  if (!program.place.empty()) {
    text += "The main thread waits in MXNet at " + program.place + ".\n";
  }
  std::string known;
  if (is_forward) {
    if (const auto devices = inferring(calls, wait.present); !devices.empty()) {
      known = "Called in inference mode, without autograd.record() or train_mode: " + devices +
              "; all devices should train, or none.\n";
    }
  }
  if (known.empty() && program.is_busy) {
    known = kBusy + std::string(".\n");
  } else if (known.empty()) {
    known = std::string("Likely: ") +
            (is_forward ? likely_causes(barrier, calls, wait.present)
                        : std::string(kNoBackward) + kEnded) +
            ".\n";
  }
  return text + known + all_causes();
}

}  // namespace

std::string reminder(const Barrier& barrier, const Wait& wait, Seconds waited, Seconds limit,
                     const ProgramState& program) {
  std::ostringstream message;
  message << "warning: " << wait.name << " has waited " << waited.count() << " s for "
          << awaited(barrier, wait) << " and ";
  if (limit.count() > 0) {
    message << "fails at " << limit.count() << " s (gluon_syncbn.set_timeout).\n";
  } else {
    message << "has no timeout (gluon_syncbn.set_timeout).\n";
  }
  message << description(barrier, wait, program);
  return message.str();
}

std::string ending_error(const Barrier& barrier, const Wait& wait, Seconds waited,
                         const Ending& ending) {
  if (!ending.reason.empty()) {
    const std::string text = wait.name + ": " + ending.reason;
    return ending.names_devices ? text + ".\n" + description(barrier, wait) : text;
  }
  std::ostringstream message;
  message << wait.name << " waited " << waited.count() << " s for " << awaited(barrier, wait);
  if (wait.processes.empty()) {
    message << " (" << barrier.options().option << "=" << barrier.num_devices() << ")";
  }
  message << ".\n" << description(barrier, wait);
  return message.str();
}

}  // namespace gluon_syncbn
