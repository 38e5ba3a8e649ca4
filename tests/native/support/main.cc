#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <iostream>
#include <streambuf>

namespace {

/// Swallows what the watchdog writes to std::cerr in the many tests that let it warn.
class NoBuffer : public std::streambuf {
 protected:
  int_type overflow(int_type character) override { return traits_type::not_eof(character); }
  std::streamsize xsputn(const char*, std::streamsize size) override { return size; }
};

// Never destroyed: std::cerr is flushed when everything else is gone.
NoBuffer& no_buffer = *new NoBuffer();
[[maybe_unused]] std::streambuf* const before = std::cerr.rdbuf(&no_buffer);

}  // namespace
