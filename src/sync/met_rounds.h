#pragma once

#include <map>
#include <string>

#include "backend/backend.h"
#include "common/device.h"

namespace gluon_syncbn {

/// Begins to count the rounds in which all devices met, for programs that ask at their end.
void count_rounds();
/// A line per layer and its devices: layer, number of rounds, devices, with tabs in between.
std::string counted_rounds();

/// All devices have met in a round. Layers with one name have their own keys.
void note_met_round(const std::string& layer, const std::string& key,
                    const std::map<Device, PassPtr>& passes);

}  // namespace gluon_syncbn
