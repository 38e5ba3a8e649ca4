#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "common/error.h"
#include "support/inbox.h"
#include "support/values.h"
#include "sync/barrier.h"
#include "sync/failed_steps.h"

namespace gluon_syncbn::tests {

/// A layer whose devices act as a text says, one after the other: "a comes, b fails". cpu(0) is a,
/// cpu(1) is b. The barrier has one mutex, so what threads do has such an order too.
///
///     a calls      the host makes a call, which comes later
///     a comes      to the round of its first call, or of one that is made now: joins and arrives
///     a joins      a arrives       the two halves of this
///     a differs    a overtakes     as "comes", with other channels; for its last call
///     a fails      instead of arriving
///     a breaks     a returns       fails in the first round; goes backward through it
///     a infers     in inference mode
///     step         all come
///     timeout      a wait ends
///     drop         as gluon_syncbn.drop_step()
class Play {
 public:
  explicit Play(std::size_t num_devices)
      : all_(std::string("abcde").substr(0, num_devices)),
        barrier_(std::make_shared<Barrier>("layer", num_devices)) {}

  /// Returns a line for each text that devices are told, in this order.
  std::string run(const std::string& acts) {
    lines_.clear();
    std::istringstream words(std::regex_replace(acts, std::regex("[,;]"), ""));
    for (std::string who, act; words >> who;) {
      if (who == "timeout") {
        barrier_->end_waits({"", Missing::kAnything, Absent::kHaveLeftItOut});
      } else if (who == "drop") {
        FailedSteps::instance().drop();
      } else if (who == "step") {
        for (const char device : all_) run(device, "comes");
      } else {
        words >> act;
        run(who.front(), act);
      }
    }
    std::string text;
    for (const auto& line : lines_) text += line + "\n";
    return text;
  }

 private:
  struct Visits {
    std::vector<Calls::Epoch> calls;  // of the host, which have yet to come
    std::vector<At> rounds;
    std::uint32_t backwards = 0;
  };

  void run(char who, const std::string& act) {
    REQUIRE((who >= 'a' && who <= all_.back() + 1));  // a device too many
    const Device device{"cpu", who - 'a'};
    Visits& own = visits_[who];
    try {
      if (act == "calls") {
        own.calls.push_back(barrier_->announce(device));
      } else if (act == "infers") {
        barrier_->saw_inference(device);
      } else if (act == "returns") {  // to the first round
        const std::uint32_t call = own.backwards++;
        come(own.rounds.front().next_backward(device), who, some_sums, call);
      } else if (act == "breaks") {  // in the first round
        own.rounds.front().fail(device, "no memory");
      } else if (act == "arrives") {  // in the last round
        come(own.rounds.back(), who);
      } else {
        join(device, act == "overtakes", &own);
        if (act == "joins") return;
        if (act == "fails") return own.rounds.back().fail(device, "no memory");
        REQUIRE((act == "comes" || act == "overtakes" || act == "differs"));
        own.rounds.back().agree(device, {act == "differs" ? 9 : 8, "float32", 1e-5, 0.9});
        come(own.rounds.back(), who);
      }
    } catch (const Error& error) {
      log(who, error.what());
    }
  }

  void join(const Device& device, bool overtakes, Visits* own) {
    Calls::Epoch epoch = Calls::kNow;
    if (!own->calls.empty()) {
      const auto call = overtakes ? own->calls.end() - 1 : own->calls.begin();
      epoch = *call;
      own->calls.erase(call);
    }
    own->rounds.push_back(tests::join(barrier_, device, epoch));
  }

  void come(const At& at, char who) { come(at, who, some_moments, at.place.round->number); }
  /// With numbers that meet those of the other devices in this round or this call of backward.
  void come(const At& at, char who, Part (*part_of)(std::uint32_t), std::uint64_t number) {
    std::vector<Part> parts;
    for (const char each : all_) {
      parts.push_back(part_of(static_cast<std::uint32_t>(number * 10) + each - 'a'));
    }
    const Part merged = merge_all(parts);
    arrive(at, {"cpu", who - 'a'}, parts[who - 'a'],
           [this, who, number, merged](const Outcome& outcome) {
             if (!outcome) return log(who, outcome.error);
             CHECK(same_bits(*outcome.merged, merged));
             log(who, "met in " + std::to_string(number));
           });
  }

  /// Devices that are told the same share a line.
  void log(char who, const std::string& text) {
    static const std::regex time("waited \\S+ s");
    static const std::regex place("\\(\\S+barrier.cc:\\d+");
    const std::string line =
        ": " + std::regex_replace(std::regex_replace(text, time, "waited T s"), place, "(FILE");
    const auto colon = lines_.empty() ? 0 : lines_.back().find(':');
    if (!lines_.empty() && lines_.back().substr(colon) == line) {
      lines_.back().insert(colon, std::string(", ") + who);
    } else {
      lines_.push_back(who + line);
    }
  }

  const std::string all_;
  const std::shared_ptr<Barrier> barrier_;
  std::map<char, Visits> visits_;
  std::vector<std::string> lines_;
};

}  // namespace gluon_syncbn::tests
