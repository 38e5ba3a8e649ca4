#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "ptx/hazards.h"
#include "ptx/kernel.h"

namespace fake_cuda::ptx {

struct Block {
  const Kernel& kernel;
  const char* parameters;
  std::vector<char> shared;
  Hazards shared_hazards;
  Hazards* global_hazards;  ///< of all blocks
  unsigned index;
  std::uint16_t barriers = 0;  ///< that the threads have passed
};

/// A thread of a block.
struct Thread {
  enum class State { kRuns, kWaits, kEnded };

  Block* block;
  std::uint16_t index;
  std::uint64_t* registers;
  std::size_t next = 0;  ///< instruction
  State state = State::kRuns;
};

template <class T>
T read(const Thread& thread, const Operand& operand) {
  const std::uint64_t bits = operand.is_register ? thread.registers[operand.value] : operand.value;
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <class T>
void write(Thread* thread, const Operand& operand, T value) {
  std::uint64_t& bits = thread->registers[operand.value];
  bits = 0;
  std::memcpy(&bits, &value, sizeof value);
}

enum class Space { kParameters, kShared, kGlobal };

/// The place of an access of so many bytes, whose address is this operand. Ends the process if it
/// is not allowed.
char* access(const Instruction& instruction, Thread* thread, Space space, std::size_t operand,
             std::size_t bytes, Access access);

}  // namespace fake_cuda::ptx
