#include "emulated_kernel.h"

#include <map>

namespace fake_cuda {
namespace {

std::map<std::string, EmulatedKernel>& kernels() {
  static auto& all = *new std::map<std::string, EmulatedKernel>;
  return all;
}

}  // namespace

void add_emulated_kernel(const std::string& body, const EmulatedKernel& kernel) {
  kernels()[body] = kernel;
}
const EmulatedKernel* emulated_kernel(const std::string& body) {
  const auto found = kernels().find(body);
  return found == kernels().end() ? nullptr : &found->second;
}

}  // namespace fake_cuda
