#pragma once

#include <string>

namespace gluon_syncbn {

/// What the program does while calls of a layer are missing, as far as it is known.
struct ProgramState {
  bool stands_still = false;    ///< no thread can make the missing calls
  bool is_interrupted = false;  ///< the user has pressed Ctrl-C; Python waits for MXNet to raise it
  bool is_busy = false;         ///< threads compute
  std::string place;            ///< where the main thread waits in MXNet; "" if it does not
};

/// What Python answers of `threads`, which may go on although no thread wakes them.
enum Answer { kStandsStill = 1, kIsInterrupted = 2 };
/// Returns a sum of Answers, and writes the place. `interrupted` says that Ctrl-C was pressed.
using AskPython = int (*)(const int* threads, int number, int interrupted, char* place, int size);

/// From now on Python is asked by this function. null: Python can no longer be asked.
void set_ask_python(AskPython function);

/// Looks at all threads but the calling one and `watchdog`, and asks Python. The caller may have to
/// wait for Python's lock. A program stands still if
///
/// - all of its threads are in the system call futex, with a private futex and without a time
///   limit, so that only a thread of the same process can wake them; but for those that are known
///   to call no layers, such as the monitor of a progress bar;
/// - and no handler of a signal can wake them.
///
/// Every thread is looked at twice. A thread that is in the same call both times, and has not run
/// in between, was there all the time. So at the moment between the two looks all of them were.
ProgramState look_at_program(int watchdog);

/// Counts presses of Ctrl-C (SIGINT) for look_at_program(), or no longer. The handler of the
/// program, if it has one, runs as before.
void note_interrupts(bool wanted);

}  // namespace gluon_syncbn
