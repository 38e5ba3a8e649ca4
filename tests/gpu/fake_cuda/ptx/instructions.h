#pragma once

#include <string>

#include "ptx/kernel.h"

namespace fake_cuda::ptx {

/// What an instruction does, by its name ("fma.rn.f32"), with " {}" after it if a vector comes
/// first. Null if it is not imitated.
Run find_instruction(const std::string& name);

}  // namespace fake_cuda::ptx
