#pragma once

#include <string>

namespace gluon_syncbn {

/// What the program has done for a second, while calls of a layer were missing.
struct ProgramState {
  bool stands_still = false;    ///< its only thread waits in MXNet, and so can make no call
  bool is_interrupted = false;  ///< the user has pressed Ctrl-C; Python waits for MXNet to raise it
  bool is_busy = false;         ///< threads computed
  bool is_idle = false;         ///< no thread computed
  std::string place;            ///< where the main thread waits in MXNet; "" if it does not
};

/// What Python answers.
enum Answer {
  kWaitsAlone = 1,        ///< the main thread waits in MXNet, and there is no other
  kStillWaitsAlone = 2,   ///< and it did so in the same call when Python was asked before
  kRaisesInterrupts = 4,  ///< the main thread waits in MXNet, and then raises KeyboardInterrupt
};
/// Returns a sum of Answers, and writes the place.
using AskPython = int (*)(char* place, int size);

/// From now on Python is asked by this function. null: Python can no longer be asked.
void set_ask_python(AskPython function);

/// Looks at the program for a second. The caller may have to wait for Python's lock.
///
/// The program stands still if its only thread waits in MXNet, and if all threads of the process
/// are idle. Until then, MXNet may still run a call that was made before.
ProgramState look_at_program();

/// Whether another thread of this process is running, ready to run or reading a disk. True if the
/// system has no /proc.
bool any_other_thread_is_busy();
/// Looks at the other threads for a second. Returns whether nearly all looks found none busy.
bool other_threads_are_idle();

/// Counts presses of Ctrl-C (SIGINT) for look_at_program(), or no longer. The handler of the
/// program, if it has one, runs as before. Only one thread calls this.
void note_interrupts(bool wanted);

}  // namespace gluon_syncbn
