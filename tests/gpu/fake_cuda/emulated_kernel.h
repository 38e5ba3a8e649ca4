#pragma once

#include <cstddef>
#include <string>

namespace fake_cuda {

/// The order in which blocks run, and in which the threads of a block take a step. A GPU may take
/// any, and results may not differ.
enum class Order : long {
  kAscending,
  kDescending,
  kConcurrent,  ///< several blocks run at the same time
};

/// A kernel of gluon_syncbn, compiled for the CPU (tests/gpu/emulation).
struct EmulatedKernel {
  std::size_t bytes;  ///< of the body
  std::size_t alignment;
  unsigned threads;  ///< of a block
  void (*clear_padding)(void* body);
  void (*run)(const void* body, long blocks, Order order);
};

/// Registers the kernel of a body, whose type is spelled as the library spells it.
void add_emulated_kernel(const std::string& body, const EmulatedKernel& kernel);
/// Returns null if there is none.
const EmulatedKernel* emulated_kernel(const std::string& body);

/// "Machine code" of such a kernel: this, the name of the function, a space, and the body.
constexpr const char* kEmulated = "emulated ";

}  // namespace fake_cuda
