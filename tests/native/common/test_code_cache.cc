// The folder of compiled code: what is kept, read and removed.

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "common/code_cache.h"
#include "support/folder.h"
#include "support/ranks.h"

namespace gluon_syncbn::tests {
namespace {

/// Saves code, and returns its file, which was not there before.
files::path save(const std::string& key, const std::string& code, const std::string& folder) {
  const auto all = [&folder] {
    return std::set<files::path>(files::directory_iterator(folder), files::directory_iterator());
  };
  const auto before = all();
  CodeFile(key).save(code);
  for (const files::path& path : all()) {
    if (before.count(path) == 0) return path;
  }
  return "";
}

}  // namespace

TEST_CASE("code cache: the folder keeps code, and finds damage") {
  const Folder home;
  const ScopedVariable cache("XDG_CACHE_HOME", home.path() + "/not/there");
  const std::string folder = home.path() + "/not/there/gluon_syncbn";
  const CodeFile file("key");
  CHECK(file.load().empty());
  const std::string code("co\0de", 5);
  file.save(code);
  CHECK(CodeFile("key").load() == code);
  CHECK(CodeFile("other").load().empty());
  CHECK(code_cache_folder() == folder);
  CHECK(files::status(folder).permissions() == files::perms::owner_all);
  // One file, and no rest of its writing.
  CHECK(std::distance(files::directory_iterator(folder), {}) == 1);
  const files::path path = *files::directory_iterator(folder);
  SUBCASE("cut off") { files::resize_file(path, files::file_size(path) - 1); }
  SUBCASE("empty") { files::resize_file(path, 0); }
  SUBCASE("changed") {
    std::fstream changed(path, std::ios::in | std::ios::out | std::ios::binary);
    changed.seekp(-1, std::ios::end);
    changed << 'E';
  }
  CHECK(file.load().empty());
  file.save(code);
  CHECK(file.load() == code);
}

TEST_CASE("code cache: without a folder of this user alone nothing is kept") {
  const Folder home;
  const std::string folder = home.path() + "/gluon_syncbn";
  const ScopedVariable cache("XDG_CACHE_HOME", home.path());
  SUBCASE("others can write there") {
    files::create_directory(folder);
    files::permissions(folder, files::perms::all);
  }
  SUBCASE("a file is in its place") { write(folder, "file"); }
  SUBCASE("a link is in its place") {
    files::create_directory(home.path() + "/other");
    files::create_symlink("other", folder);
  }
  SUBCASE("a link to nothing is in its place") { files::create_symlink("nothing", folder); }
  SUBCASE("a path that is not absolute") { setenv("XDG_CACHE_HOME", "relative", 1); }
  CHECK(code_cache_folder().empty());
  const CodeFile file("key");
  file.save("code");
  CHECK(file.load().empty());
}

TEST_CASE("code cache: a folder that changes after it was looked at is not used") {
  const Folder home;
  const ScopedVariable cache("XDG_CACHE_HOME", home.path());
  const std::string folder = home.path() + "/gluon_syncbn";
  CodeFile("key").save("code");
  const CodeFile file("key");
  const std::string moved = home.path() + "/moved";
  files::rename(folder, moved);
  SUBCASE("a link") { files::create_symlink(moved, folder); }
  SUBCASE("others can write there") {
    files::copy(moved, folder);
    files::permissions(folder, files::perms::all);
  }
  CHECK(file.load().empty());
  files::remove(*files::directory_iterator(moved));
  file.save("code");
  CHECK(files::is_empty(moved));
}

TEST_CASE("code cache: the folder that the folder lies in may be a link") {
  const Folder home;
  files::create_directory(home.path() + "/far");
  files::create_symlink("far", home.path() + "/.cache");
  const ScopedVariable cache("XDG_CACHE_HOME", home.path() + "/.cache");
  CodeFile("key").save("code");
  CHECK(CodeFile("key").load() == "code");
}

TEST_CASE("code cache: only a file that this user alone can write is read") {
  const Folder home;
  const ScopedVariable cache("XDG_CACHE_HOME", home.path());
  const files::path path = [&home] {
    files::create_directory(home.path() + "/gluon_syncbn");
    return save("key", "code", home.path() + "/gluon_syncbn");
  }();
  SUBCASE("a link") {
    files::rename(path, home.path() + "/moved");
    files::create_symlink(home.path() + "/moved", path);
  }
  SUBCASE("others can write to it") { files::permissions(path, files::perms::all); }
  SUBCASE("a folder") {
    files::remove(path);
    files::create_directory(path);
  }
  SUBCASE("a pipe, which no process writes") {
    files::remove(path);
    REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  }
  CHECK(CodeFile("key").load().empty());
}

TEST_CASE("code cache: over the limit, the files go whose last use is the longest ago") {
  const Folder home;
  const ScopedVariable cache("XDG_CACHE_HOME", home.path());
  const std::string folder = home.path() + "/gluon_syncbn";
  files::create_directory(folder);
  const std::string code(1000, 'x');
  const files::path first = save("first", code, folder);
  const files::path second = save("second", code, folder);
  const files::path third = save("third", code, folder);
  // Other files are neither removed nor counted.
  const std::string digits(32, '0');
  for (const std::string& name : {std::string("mine"), digits + "0", digits + ".txt",
                                  digits + ".1234567", std::string(32, 'g'), "x" + digits}) {
    write(folder + "/" + name, std::string(10000, 'x'));
    age(folder + "/" + name, std::chrono::hours(99));
  }
  write(home.path() + "/target", code);
  files::create_symlink("../target", folder + "/" + digits);
  age(first, std::chrono::hours(3));
  age(second, std::chrono::hours(2));
  age(third, std::chrono::hours(1));
  CHECK(CodeFile("first").load() == code);
  // There is room for three.
  const CodeFile fourth("fourth", 3 * (code.size() + 32));
  fourth.save(code);
  CHECK(files::exists(first));
  CHECK_FALSE(files::exists(second));
  CHECK(files::exists(third));
  CHECK(fourth.load() == code);
  CHECK(std::distance(files::directory_iterator(folder), {}) == 3 + 6 + 1);
}

TEST_CASE("code cache: what writers have left that died is removed") {
  const Folder home;
  const ScopedVariable cache("XDG_CACHE_HOME", home.path());
  const std::string folder = home.path() + "/gluon_syncbn";
  files::create_directory(folder);
  const std::string path = save("key", "code", folder);
  for (const char* end : {".aB3xyZ", ".100000", ".100001"}) write(path + end, "co");
  age(path + ".aB3xyZ", std::chrono::minutes(61));
  age(path + ".100000", std::chrono::minutes(59));
  CHECK(CodeFile("key").load() == "code");
  CHECK(files::exists(path + ".aB3xyZ"));  // a reader removes nothing
  CodeFile("key").save("new");
  CHECK(CodeFile("key").load() == "new");
  CHECK_FALSE(files::exists(path + ".aB3xyZ"));
  CHECK(files::exists(path + ".100000"));
  CHECK(files::exists(path + ".100001"));
}

TEST_CASE("code cache: HOME is the second choice, and neither is needed") {
  const Folder home;
  const ScopedVariable cache("XDG_CACHE_HOME", "");
  const ScopedVariable of_user("HOME", home.path());
  CHECK(code_cache_folder() == home.path() + "/.cache/gluon_syncbn");
  const ScopedVariable none("HOME", "");
  CHECK(code_cache_folder().empty());
}

TEST_CASE("code cache: several threads and processes fill one folder") {
  const Folder home;
  const ScopedVariable cache("XDG_CACHE_HOME", home.path());
  std::atomic<int> wrong{0};
  run_ranks(8, [&](std::size_t) {
    for (int i = 0; i < 50; ++i) {
      const std::string code(static_cast<std::size_t>(1000 + i), 'x');
      const CodeFile file("key" + std::to_string(i));
      file.save(code);
      if (file.load() != code) ++wrong;
    }
  });
  CHECK(wrong == 0);
}

}  // namespace gluon_syncbn::tests
