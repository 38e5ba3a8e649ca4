// Devices that stay away, come late, fail or differ: what each of them is told, and what comes
// next.

#include <doctest/doctest.h>

#include <cstddef>
#include <regex>
#include <string>
#include <utility>

#include "support/play.h"
#include "support/ranks.h"

namespace gluon_syncbn::tests {
namespace {

struct Fault {
  const char* name;
  std::size_t num_devices;
  const char* acts;  ///< before a step without faults
  const char* error;
  const char* lines;  ///< of the acts and of this step
};

const Fault kFaults[]{
    {"a device stays away", 2, "a comes, timeout",
     "layer round 0 forward waited T s for all of 2 devices (num_devices=2).\n"
     "Came: cpu(0) (1 training forward). Missing: 1 device never called in training.\n"
     "Likely: <reads>; or <too many> <moved>.\n<page>",
     "a: <error>\na, b: <again 1>\n"},
    {"a device joins, and arrives after the timeout", 2, "b joins, a comes, timeout, b arrives",
     "layer round 0 forward waited T s for all of 2 devices (num_devices=2).\n"
     "Came: cpu(0) (1 training forward). Missing: cpu(1) (1 training forward).\n"
     "Likely: <reads>; or <no data>; or <ended>; or the step uses fewer devices than before "
     "<moved>.\n<page>",
     "a, b: <error>\na, b: <again 1>\n"},
    {"a device arrives after a later step has begun", 3,
     "a joins, c fails; c comes, b comes; a arrives, a comes",
     "layer round 0 forward: failed on cpu(2): no memory",
     "c, b: <again 1>\na: <error>\na: <again 1>\na, b, c: met in 2\n"},
    {"a device stays away from several steps", 2, "step; a fails, drop; a comes, timeout",
     "layer round 2 forward waited T s for all of 2 devices (num_devices=2).\n"
     "Came: cpu(0) (3 training forwards). Missing: cpu(1) (1 training forward).\n"
     "Likely: a branch that calls the layer was taken on some devices only, or more often on one "
     "than on another; or later steps use fewer devices than the first.\n<page>",
     "a, b: met in 0\na: <error>\na, b: <again 3>\n"},
    {"a device is in inference mode", 2, "step; b infers, b infers; a comes, timeout",
     "layer round 1 forward waited T s for all of 2 devices (num_devices=2).\n"
     "Came: cpu(0) (2 training forwards). Missing: cpu(1) (1 training forward, then 2 in inference "
     "mode).\n<inference>: cpu(1); all devices should train, or none.\n<page>",
     "a, b: met in 0\na: <error>\na, b: <again 2>\n"},
    {"a device that never trained is in inference mode", 3, "b infers, a comes, timeout",
     "layer round 0 forward waited T s for all of 3 devices (num_devices=3).\n"
     "Came: cpu(0) (1 training forward). Missing: 2 devices never called in training.\n"
     "<inference>: cpu(1); all devices should train, or none.\n<page>",
     "a: <error>\na, b, c: <again 1>\n"},
    {"a device stays away for so long that it misses two errors", 3,
     "a fails, b fails; a comes, b comes; a comes, b comes, timeout",
     "layer round 2 forward waited T s for all of 3 devices (num_devices=3).\n"
     "Came: cpu(0) (3 training forwards), cpu(1) (3 training forwards). Missing: 1 device never "
     "called in training.\nLikely: <reads>; or <too many> <moved>.\n<page>",
     "a, b: layer round 1 forward: <repeats>layer round 0 forward: failed on cpu(0): no memory\n"
     "a, b: <error>\na, b, c: <again 3>\n"},
    {"a device stays away from backward", 2,
     "step; b returns, timeout, a returns; a returns, b returns",
     "layer round 0 backward waited T s for all of 2 devices (num_devices=2).\n"
     "Came: cpu(1). Missing: cpu(0).\n"
     "Likely: backward was called for some devices only (give the losses of all devices to "
     "autograd.backward, or call backward() of each); or the output of the layer does not reach "
     "the loss on a device; or <ended>.\n<page>",
     "a, b: met in 0\nb, a: <error>\na, b: met in 1\na, b: <again 1>\n"},
    {"a device leaves out a round in which a peer waits", 2, "a comes, a comes, a breaks",
     "layer round 0 forward: failed on cpu(0): no memory",
     "a: <error>\na: <again 2>\n"
     "a: layer round 1 forward: cpu(1) was left behind: it was not called in this round, and is in "
     "a later one now\n"
     "b: <again 2>\n"},
    {"there is a device too many", 2, "step; c comes; step; c comes",
     "layer synchronizes cpu(0), cpu(1) (num_devices=2) and was called on cpu(2) as well. That "
     "number should be the number of devices in use. After you move a hybridized network to other "
     "contexts, call hybridize() again.",
     "a, b: met in 0\nc: <error>\na, b: met in 1\nc: <error>\na, b: met in 2\n"},
    {"a device fails before its peers come", 3,
     "a calls, b calls, c calls; a fails, b comes, c comes",
     "layer round 0 forward: failed on cpu(0): no memory", "b, c: <error>\na, b, c: <again 1>\n"},
    {"a device fails before its peers are called", 3,
     "a calls, a fails; b calls, c calls, b comes, c comes",
     "layer round 0 forward: failed on cpu(0): no memory", "b, c: <error>\na, b, c: <again 1>\n"},
    {"a device fails while a peer waits", 3, "a comes, b fails, c comes",
     "layer round 0 forward: failed on cpu(1): no memory", "a, c: <error>\na, b, c: <again 1>\n"},
    {"two devices fail", 3, "a comes, b fails, c fails",
     "layer round 0 forward: failed on cpu(1): no memory", "a: <error>\na, b, c: <again 1>\n"},
    {"a device fails in two rounds, and a peer has come to one of them", 3,
     "b calls, b calls; a comes, a comes, c comes; b fails, b fails, c comes",
     "failed on cpu(1): no memory",
     "a, c: layer round 0 forward: <error>\na, c: layer round 1 forward: <error>\n"
     "a, b, c: layer round 2 forward: <repeats>layer round 0 forward: <error>\n"},
    {"a device fails after forward while a peer waits in backward", 2,
     "step; a returns, b breaks, a returns", "failed on cpu(1): no memory",
     "a, b: met in 0\na, a: layer round 0 backward: <error>\n"
     "a, b: layer round 1 forward: <repeats>layer round 0 forward: <error>\n"},
    {"a device fails after forward before a peer is in backward", 2, "step; b breaks, a returns",
     "failed on cpu(1): no memory",
     "a, b: met in 0\na: layer round 0 backward: <error>\n"
     "a, b: layer round 1 forward: <repeats>layer round 0 forward: <error>\n"},
    {"a device fails, and operations of its peer are slow", 2,
     "a calls, a fails, b calls; a calls, a comes, b calls; a calls, a comes, b calls; "
     "a calls, a comes, b calls; b comes, b comes, b comes, b comes",
     "layer round 0 forward: failed on cpu(0): no memory",
     "a: <again 1>\nb: <error>\nb: <again 1>\na, b: met in 2\na, b: met in 3\na, b: met in 4\n"},
    {"a device differs", 3, "a comes, b differs, c comes",
     "layer round 0 forward: devices cpu(0) and cpu(1) differ: channels 8 and 9",
     "a, b, c: <error>\na, b, c: <again 1>\n"},
    {"a device comes twice", 2, "a comes, a arrives, b comes",
     "layer round 0 forward: cpu(0) came twice",
     "a: <error>\na: internal error of gluon_syncbn, please report it: <error> (FILE)\nb: <error>\n"
     "a, b: <again 1>\n"},
    {"a device comes after all have met", 2, "step; a arrives",
     "layer round 0 forward: cpu(0) came twice",
     "a, b: met in 0\na: internal error of gluon_syncbn, please report it: <error> (FILE)\n"
     "a, b: met in 1\n"},
    {"a call of a failed step comes after later calls", 2,
     "b calls, a fails; a comes, b calls, b overtakes, b comes",
     "layer round 0 forward: failed on cpu(0): no memory",
     "a, b: <again 1>\n"
     "b: this call was made before a step failed, and comes after calls of later steps\n"
     "a, b: met in 2\n"},
    {"a failed step is dropped", 3, "a calls, a fails, b calls, b comes, c infers, drop",
     "layer round 0 forward: failed on cpu(0): no memory", "b: <error>\na, b, c: met in 1\n"},
    {"a failed step is dropped while its error is repeated", 3,
     "a calls, a fails, b calls, b comes; b comes, drop",
     "layer round 0 forward: failed on cpu(0): no memory",
     "b: <error>\nb: <again 1>\na, b, c: met in 2\n"},
    {"a step is dropped that has not failed", 2, "a calls, drop; b comes, a comes", "",
     "a, b: met in 0\na, b: met in 1\n"}};

/// Puts the texts in that many messages have.
std::string whole(std::string lines, const std::string& error) {
  const std::pair<const char*, std::string> texts[]{
      {"<again (.)>", "layer round $1 forward: <repeats><error>"},
      {"<error>", error},
      {"<repeats>",
       "an earlier step has failed, and MXNet may have updated weights with arrays that no "
       "operation has written. Restore the weights, or call gluon_syncbn.drop_step(), which takes "
       "this error. It was: "},
      {"<inference>", "Called in inference mode, without autograd.record() or train_mode"},
      {"<reads>",
       "the loop reads a result of one device (asnumpy, asscalar, wait_to_read, waitall, or a new "
       "DataLoader, which calls waitall) before it has called the others"},
      {"<too many>", "num_devices is larger than the number of devices in use"},
      {"<no data>",
       "a missing device got no data this step (if a last batch has fewer images than there are "
       "devices, the DataLoader should have last_batch='discard')"},
      {"<moved>",
       "(after you move a hybridized network to other contexts, call hybridize() again)"},
      {"<ended>",
       "an exception or an interrupt ended a step between two devices, or the thread of one (after "
       "that, call gluon_syncbn.drop_step())"},
      {"<page>",  // no pages lie beside this program
       "All causes: docs/troubleshooting.md of the project, 'A device does not come'."}};
  for (const auto& [name, text] : texts) lines = std::regex_replace(lines, std::regex(name), text);
  return lines;
}

}  // namespace

TEST_CASE("faults: all are told why, and the next step works or repeats the error") {
  const ScopedTimeout for_ever(0);
  for (const Fault& fault : kFaults) {
    CAPTURE(std::string(fault.name));
    Play play(fault.num_devices);
    CHECK(play.run(fault.acts + std::string("; step")) == whole(fault.lines, fault.error));
    // Now they meet, in any order.
    const bool has_c = fault.num_devices == 3;
    const auto next = play.run(std::string(has_c ? "c comes, " : "") + "b comes, a comes");
    CHECK(next.find(has_c ? "a, b, c: met in " : "a, b: met in ") == 0);
  }
}

}  // namespace gluon_syncbn::tests
