#pragma once

#include <memory>

#include "backend/backend.h"

namespace gluon_syncbn::cpu {

std::shared_ptr<DevicePass> forward_pass(const Backend::Forward& work, std::shared_ptr<Call> call);

/// In place, throws Error if x is not recoverable from the output.
std::shared_ptr<DevicePass> backward_pass(const Backend::Backward& work,
                                          std::shared_ptr<Call> call);

void inference(const Backend::Forward& work);

}  // namespace gluon_syncbn::cpu
