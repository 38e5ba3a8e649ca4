#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "emulated_kernel.h"

// Runs PTX, the code that the real NVRTC makes of a kernel for a GPU that is newer than itself. Of
// the language ("Parallel Thread Execution ISA", NVIDIA) it knows what the kernels of gluon_syncbn
// use. All else ends the process, as does what a GPU would not report: a race, a barrier that not
// all threads reach, and an access that is not aligned or outside of an allocation.

namespace fake_cuda::ptx {

struct Instruction;
struct Thread;
using Run = void (*)(const Instruction& instruction, Thread* thread);

struct Operand {
  bool is_register = false;
  std::uint64_t value = 0;  ///< number of the register, or the bits of a constant
};

struct Instruction {
  std::string text{};  ///< for messages
  Run run = nullptr;
  std::vector<Operand> operands{};  ///< the parts of vectors one by one, the result first
  std::int64_t offset = 0;          ///< added to an address
  std::size_t target = 0;           ///< of a branch
  bool is_conditional = false;
  bool is_negated = false;
  Operand condition{};
};

// Registers that are there when a thread begins.
constexpr std::uint64_t kThreadIndex = 0;
constexpr std::uint64_t kBlockIndex = 1;

struct Kernel {
  std::string name;
  std::size_t parameter_bytes = 0;
  std::size_t shared_bytes = 0;
  std::size_t registers = 0;
  unsigned threads = 0;  ///< of a block
  std::vector<Instruction> instructions{};
};

/// Whether code that a program gives to the driver is PTX.
bool is_ptx(const std::string& code);

/// The kernel of a program, which has only one.
Kernel parse(const std::string& text);

/// `arguments` are the bytes of the only parameter.
void run(const Kernel& kernel, const void* arguments, long blocks, Order order);

}  // namespace fake_cuda::ptx
