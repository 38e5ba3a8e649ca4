#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <iostream>
#include <streambuf>

namespace {

/// Discards the warnings of the watchdog on std::cerr, which many tests cause.
class NoBuffer : public std::streambuf {
 protected:
  int_type overflow(int_type character) override { return traits_type::not_eof(character); }
  std::streamsize xsputn(const char*, std::streamsize size) override { return size; }
};

// Never destroyed, because std::cerr is flushed after all other objects are gone.
NoBuffer& no_buffer = *new NoBuffer();
[[maybe_unused]] std::streambuf* const before = std::cerr.rdbuf(&no_buffer);

/// Code for the fake CUDA stays out of the folder where code for GPUs lies.
[[maybe_unused]] const bool has_a_place_for_code =
    dlsym(RTLD_DEFAULT, "fakeCudaCount") == nullptr || std::getenv("GLUON_SYNCBN_NVRTC") ||
    unsetenv("HOME") + unsetenv("XDG_CACHE_HOME") == 0;

}  // namespace
