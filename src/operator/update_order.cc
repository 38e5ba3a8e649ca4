#include "operator/update_order.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/per_process.h"
#include "common/weak_registry.h"

namespace gluon_syncbn::op {
namespace {

/// Passes of a graph that may be under way at the same time. Of an earlier one nothing comes.
constexpr std::uint64_t kPassesUnderWay = 2;
/// Updates of other graphs that may be under way beside them.
constexpr std::size_t kOthers = 16;

using Orders = PerProcess<WeakRegistry<std::pair<Device, const void*>, UpdateOrder>>;

}  // namespace

std::shared_ptr<UpdateOrder> GraphUses::order(const Device& device, const void* running_mean) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!order_ || running_mean != running_mean_) order_ = UpdateOrder::of(device, running_mean);
  running_mean_ = running_mean;
  return order_;
}

std::optional<std::size_t> GraphUses::add(std::size_t trace, std::size_t use) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (trace != trace_ || !uses_.insert(use).second) return std::nullopt;
  return uses_.size() - 1;
}

std::size_t GraphUses::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return uses_.size();
}

void GraphUses::came(std::uint64_t pass) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++came_[pass];
  while (came_.begin()->first + kPassesUnderWay <= came_.rbegin()->first) {
    came_.erase(came_.begin());
  }
}

bool GraphUses::are_over(std::uint64_t pass) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = came_.find(pass);
  return found == came_.end() || found->second >= uses_.size();
}

class UpdateOrder::Entry {
 public:
  explicit Entry(Place place) : place_(std::move(place)) {}

  bool comes_before(const Entry& other) const {
    const auto uses = place_.uses.lock();
    return uses && uses == other.place_.uses.lock() &&
           std::tie(place_.pass, place_.use) < std::tie(other.place_.pass, other.place_.use);
  }
  /// Whether nothing can be put before it any more.
  bool is_settled() const {
    const auto uses = place_.uses.lock();
    return is_over && (!uses || uses->are_over(place_.pass));
  }

  std::uint64_t pass() const { return place_.pass; }

  bool is_over = false;
  StatisticsPtr batch;

 private:
  const Place place_;
};

std::shared_ptr<UpdateOrder> UpdateOrder::of(const Device& device, const void* running_mean) {
  return Orders::instance().find_or_make({device, running_mean},
                                         [] { return std::make_shared<UpdateOrder>(); });
}

std::shared_ptr<UpdateOrder::Entry> UpdateOrder::reserve(Place place) {
  const auto uses = place.uses.lock();
  const auto entry = std::make_shared<Entry>(std::move(place));
  const std::lock_guard<std::mutex> lock(mutex_);
  forget_if_settled();  // before this one comes, which may belong before what is there
  if (uses) uses->came(entry->pass());
  // A use that never comes would keep the entries of all passes.
  if (uses && entries_.size() > kPassesUnderWay * uses->size() + kOthers) forget_applied();
  const auto later = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const auto& each) { return entry->comes_before(*each); });
  entries_.insert(later, entry);
  return entry;
}

void UpdateOrder::apply(const std::shared_ptr<Entry>& entry, StatisticsPtr statistics,
                        Update* update) {
  update->turn = std::unique_lock<std::mutex>(turn_);
  const std::lock_guard<std::mutex> lock(mutex_);
  entry->is_over = true;
  entry->batch = std::move(statistics);
  if (entry->batch) {
    const auto own = std::find(entries_.begin(), entries_.end(), entry);
    const bool is_late = std::any_of(own, entries_.end(), [&](const auto& each) {
      return each != entry && each->batch != nullptr;
    });
    if (is_late) {
      update->saved = before_;
      for (const auto& each : entries_) {
        if (each->batch) update->batches.push_back(each->batch);
      }
    } else {
      update->batches = {entry->batch};
      if (!before_ && !is_settled()) {
        before_ = std::make_shared<SavedStatistics>();
        update->saved = before_;
      }
    }
  }
  forget_if_settled();
}

void UpdateOrder::cancel(const std::shared_ptr<Entry>& entry) {
  const std::lock_guard<std::mutex> lock(mutex_);
  entry->is_over = true;
  forget_if_settled();
}

bool UpdateOrder::is_settled() const {
  return std::all_of(entries_.begin(), entries_.end(),
                     [](const auto& entry) { return entry->is_settled(); });
}

void UpdateOrder::forget_if_settled() {
  if (!is_settled()) return;
  entries_.clear();
  before_ = nullptr;
}

void UpdateOrder::forget_applied() {
  entries_.remove_if([](const auto& entry) { return entry->is_over; });
  before_ = nullptr;
}

}  // namespace gluon_syncbn::op
