#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace gluon_syncbn::tests {

namespace files = std::filesystem;

/// A folder for one test.
class Folder {
 public:
  Folder() { REQUIRE(mkdtemp(path_.data()) != nullptr); }
  ~Folder() { files::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/gluon_syncbn_test_XXXXXX";
};

inline void write(const files::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// Makes a file look as if its last use had been so long ago.
inline void age(const files::path& path, std::chrono::minutes minutes) {
  files::last_write_time(path, files::file_time_type::clock::now() - minutes);
}

}  // namespace gluon_syncbn::tests
