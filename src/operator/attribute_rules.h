#pragma once

#include <cstddef>

#include "operator/attributes.h"

namespace gluon_syncbn::op {

// Values come from symbol files that anyone may have written.
constexpr int kMaxDevices = 4096;
constexpr const char* kCountOfDevices = "a whole number from 1 to 4096";
constexpr std::size_t kMaxKeyLength = 1024;
constexpr const char* kShort = "at most 1024 characters long";

/// Throws Error if attributes exclude each other.
void check_rules(const Attributes& attributes);

}  // namespace gluon_syncbn::op
