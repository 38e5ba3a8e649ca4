// Functions that headers of later compilers call, and that neither glibc 2.17 nor the libstdc++ of
// GCC 4.8 has. cmake/portable.cmake compiles them into the library, which does not export them.

#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <thread>

// False is always right: reference counts are then atomic.
extern "C" {
extern char __libc_single_threaded;
char __libc_single_threaded = 0;

#if __GLIBC_PREREQ(2, 33)
// Before, the header called __xstat and __fxstat.
int stat(const char* path, struct stat* found) noexcept {
  return static_cast<int>(syscall(SYS_stat, path, found));
}
int fstat(int file, struct stat* found) noexcept {
  return static_cast<int>(syscall(SYS_fstat, file, found));
}
#endif
}

namespace std {

void __throw_bad_array_new_length() { __throw_bad_alloc(); }

void __throw_out_of_range_fmt(const char* format, ...) {
  char text[256];
  va_list values;
  va_start(values, format);
  // Only the size differs from printf's format, and %zu means the same to both.
  vsnprintf(text, sizeof(text), format, values);
  va_end(values);
  __throw_out_of_range(text);
}

thread::_State::~_State() = default;

namespace {

extern "C" void* run_state(void* state) {
  const unique_ptr<thread::_State> owner(static_cast<thread::_State*>(state));
  owner->_M_run();
  return nullptr;
}

}  // namespace

void thread::_M_start_thread(_State_ptr state, void (*)()) {
  const int status = pthread_create(&_M_id._M_thread, nullptr, run_state, state.get());
  if (status != 0) __throw_system_error(status);
  state.release();
}

}  // namespace std
