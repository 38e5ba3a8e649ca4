#pragma once

#include "backend/backend.h"
#include "cpu/kernels.h"

/// What one CPU context computes for some or all channels of its pass, for any dtype.
namespace gluon_syncbn::cpu {

/// How to write the output arrays of a pass.
struct Stores {
  StoreMode data = StoreMode::kAssign;
  StoreMode shortcut = StoreMode::kAssign;
};
/// To be called once, before the outputs are written.
Stores prepare_outputs(const Pass& pass);

/// Throws Error unless the input of every channel is recoverable from its output.
void require_invertible(const Backward& work);

/// Computes the partial statistics of `channels` into Pass::statistics, which has zeros there.
void sum(const Pass& pass, Channels channels);

/// The statistics that a forward pass saves, with room for inv_std.
Saved new_saved(const PartialStatistics& merged);
void set_inv_std(const Forward& work, const PartialStatistics& merged, Channels channels,
                 const Saved& saved);
/// The statistics of a forward pass that normalizes by the running statistics.
Saved running_statistics(const Forward& work);

/// Writes the outputs that have the shape of the data. An inference pass has no `merged`.
void write_outputs(const Pass& pass, const PartialStatistics& merged, const Saved& saved,
                   const Stores& stores, Channels channels);
/// Writes the results with one number per channel, after all channels are merged.
void write_channel_results(const Pass& pass, const PartialStatistics& merged, const Saved& saved);

}  // namespace gluon_syncbn::cpu
