#include "cpu/backend.h"

#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "cpu/device_pass.h"
#include "cpu/kernels.h"

// The thread that finishes computes for all devices. It takes a part of the channels at a time, on
// the threads of the pool: it sums the part on all devices, merges the sums, and writes the outputs
// of all devices. So the outputs find the elements that the sums have read in the caches.

namespace gluon_syncbn::cpu {
namespace {

std::vector<Layout> layouts_of(const Passes& passes) {
  std::vector<Layout> layouts;
  for (const auto& pass : passes) layouts.push_back(pass->kind().layout);
  return layouts;
}

/// Sums `channels` of all passes.
void sum_all(const Passes& passes, const std::vector<Layout>& layouts, Channels channels) {
  for (std::size_t i = 0; i < passes.size(); ++i) {
    for_each_part_of(layouts, i, channels, [&](Channels part) { sum(*passes[i], part); });
  }
}

void infer(const Pass& pass) {
  const Forward& work = *pass.forward();
  *work.saved = running_statistics(work);
  const Stores stores = prepare_outputs(pass);
  for_each_part({work.kind.layout},
                [&](Channels channels) { write_outputs(pass, {}, *work.saved, stores, channels); });
}

void compute(const Passes& passes, const std::optional<PartialStatistics>& of_processes) {
  const Pass& first = *passes.front();
  const auto parts = parts_of(passes);
  std::vector<Stores> stores;
  for (const auto& pass : passes) stores.push_back(prepare_outputs(*pass));
  const auto merged = of_processes ? *of_processes : PartialStatistics::room_for(parts);
  const Saved of_forward = first.forward() ? new_saved(merged) : Saved();
  const auto saved_of = [&](const Pass& pass) -> const Saved& {
    return pass.forward() ? of_forward : pass.backward()->saved;
  };
  const auto layouts = layouts_of(passes);
  for_each_part(layouts, [&](Channels channels) {
    if (!of_processes) {
      sum_all(passes, layouts, channels);
      merge(first.direction(), parts, channels.begin, channels.end, merged);
    }
    if (const Forward* work = first.forward()) set_inv_std(*work, merged, channels, of_forward);
    // The sums have read the last device last.
    for (std::size_t i = passes.size(); i-- > 0;) {
      for_each_part_of(layouts, i, channels, [&](Channels part) {
        write_outputs(*passes[i], merged, saved_of(*passes[i]), stores[i], part);
      });
    }
  });
  // All devices write before any pass completes. Once a pass is complete, MXNet may let the next
  // use of the layer read running statistics.
  const auto lock = lock_running_statistics(first.direction());
  for (const auto& pass : passes) write_channel_results(*pass, merged, saved_of(*pass));
}

class CpuBackend : public Backend {
 public:
  PassPtr begin(int /*device*/, Work work, Done complete) const override {
    const auto pass = std::make_shared<Pass>(Pass{std::move(work), std::move(complete), this});
    if (const Backward* backward = pass->backward(); backward && backward->inplace()) {
      require_invertible(*backward);
    }
    if (const Forward* forward = pass->forward(); forward && forward->is_inference) return pass;
    const Layout& layout = pass->kind().layout;
    pass->statistics = PartialStatistics::zeros(layout.count(), layout.channels);
    return pass;
  }

  void sum(const Passes& passes, Done then) const override {
    std::string error;
    try {
      const auto layouts = layouts_of(passes);
      for_each_part(layouts, [&](Channels channels) { sum_all(passes, layouts, channels); });
    } catch (const std::exception& caught) {
      error = caught.what();
    }
    then(error);
  }

  void finish(const Passes& passes, const std::optional<PartialStatistics>& merged,
              const std::string& error) const override {
    std::string found = error;
    try {
      const Forward* const forward = passes.front()->forward();
      if (error.empty() && forward && forward->is_inference) {
        infer(*passes.front());
      } else if (error.empty()) {
        compute(passes, merged);
      }
    } catch (const std::exception& caught) {
      found = caught.what();
    }
    for (const auto& pass : passes) std::exchange(pass->complete, nullptr)(found);
  }

  void fill_with_nan(int /*device*/, void* array, std::size_t bytes) const override {
    if (bytes > 0) std::memset(array, kNanByte, bytes);
  }
};

}  // namespace

const Backend& backend() {
  static const Backend& backend = *new CpuBackend;
  return backend;
}

}  // namespace gluon_syncbn::cpu
