#include <cstdint>
#include <string>
#include <vector>

#include "control.h"
#include "memory.h"
#include "ptx/thread.h"

namespace fake_cuda::ptx {
namespace {

[[noreturn]] void die_at(const Instruction& instruction, const Thread& thread,
                         const std::string& why) {
  die("kernel " + thread.block->kernel.name + ", block " + std::to_string(thread.block->index) +
      ", thread " + std::to_string(thread.index) + ": " + why + ": " + instruction.text);
}

/// Runs a thread to its next barrier, or to its end.
void run_thread(Thread* thread) {
  const std::vector<Instruction>& all = thread->block->kernel.instructions;
  thread->state = Thread::State::kRuns;
  while (thread->state == Thread::State::kRuns) {
    const Instruction& instruction = all.at(thread->next++);
    if (instruction.is_conditional &&
        read<bool>(*thread, instruction.condition) == instruction.is_negated) {
      continue;
    }
    instruction.run(instruction, thread);
  }
}

void run_block(Block* block, bool descending) {
  const unsigned number_of_threads = block->kernel.threads;
  const std::size_t registers = block->kernel.registers;
  std::vector<std::uint64_t> all_registers(number_of_threads * registers, ~0ull);
  std::vector<Thread> threads;
  for (unsigned i = 0; i < number_of_threads; ++i) {
    const unsigned index = descending ? number_of_threads - 1 - i : i;
    threads.push_back({block, static_cast<std::uint16_t>(index), &all_registers[i * registers]});
    threads.back().registers[kThreadIndex] = index;
    threads.back().registers[kBlockIndex] = block->index;
  }
  do {
    for (Thread& thread : threads) {
      run_thread(&thread);
      if (thread.next != threads.front().next || thread.state != threads.front().state) {
        die_at(block->kernel.instructions[thread.next - 1], thread,
               "other threads of the block stop elsewhere");
      }
    }
    ++block->barriers;
  } while (threads.front().state == Thread::State::kWaits);
}

}  // namespace

char* access(const Instruction& instruction, Thread* thread, Space space, std::size_t operand,
             std::size_t bytes, Access access) {
  Block* const block = thread->block;
  const std::uint64_t address = read<std::uint64_t>(*thread, instruction.operands[operand]) +
                                static_cast<std::uint64_t>(instruction.offset);
  if (address % bytes != 0) die_at(instruction, *thread, "the address is not aligned");
  if (space == Space::kParameters) {
    if (address + bytes > block->kernel.parameter_bytes) {
      die_at(instruction, *thread, "outside of the parameters");
    }
    return const_cast<char*>(block->parameters) + address;
  }
  const Place place{block->index, thread->index, block->barriers};
  const bool is_shared = space == Space::kShared;
  Hazards* const hazards = is_shared ? &block->shared_hazards : block->global_hazards;
  if (!hazards->allows(address, bytes, access, place)) {
    die_at(instruction, *thread, "a race with another thread");
  }
  if (is_shared) {
    if (address + bytes > block->shared.size()) {
      die_at(instruction, *thread, "outside of the shared memory");
    }
    return block->shared.data() + address;
  }
  auto* const at = reinterpret_cast<char*>(address);
  const auto allocation = find(at);
  if (!allocation || at + bytes > allocation->begin + allocation->bytes) {
    die_at(instruction, *thread, "outside of all allocations");
  }
  return at;
}

void run(const Kernel& kernel, const void* arguments, long blocks, Order order) {
  const bool descending = order == Order::kDescending;
  Hazards global;
  for (long i = 0; i < blocks; ++i) {
    Block block{kernel,
                static_cast<const char*>(arguments),
                std::vector<char>(kernel.shared_bytes, static_cast<char>(kFresh)),
                {},
                &global,
                static_cast<unsigned>(descending ? blocks - 1 - i : i)};
    run_block(&block, descending);
  }
}

}  // namespace fake_cuda::ptx
