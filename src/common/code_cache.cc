#include "common/code_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace gluon_syncbn {
namespace {

constexpr std::size_t kHashLength = 32;
constexpr int kWriters = 100;  // of one file at a time
constexpr std::time_t kHour = 3600;

/// The FNV-1a hash of 128 bits in hexadecimal: G. Fowler, L. C. Noll, K.-P. Vo and D. Eastlake,
/// "The FNV Non-Cryptographic Hash Algorithm". It finds damage and changes; the mode of the folder
/// keeps others out.
std::string hash_of(const std::string& text) {
  __extension__ using Wide = unsigned __int128;
  const Wide prime = (Wide{1} << 88) + 0x13b;
  Wide hash = (Wide{0x6c62272e07bb0142} << 64) + 0x62b821756295c58d;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * prime;
  std::array<char, kHashLength + 1> hex{};
  std::snprintf(hex.data(), hex.size(), "%016llx%016llx",
                static_cast<unsigned long long>(hash >> 64), static_cast<unsigned long long>(hash));
  return hex.data();
}

/// An open file or folder. Its descriptor is -1 if it is a link or of another type, if another user
/// owns it, or if others can write to it.
class Opened {
 public:
  // O_NONBLOCK: a pipe would wait for its writer.
  Opened(int folder, const std::string& path, int flags, mode_t type = S_IFREG)
      : opened_(openat(folder, path.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600)),
        is_missing_(opened_ < 0 && errno == ENOENT),
        is_safe_(fstat(opened_, &found_) == 0 && found_.st_uid == geteuid() &&
                 (found_.st_mode & (S_IFMT | S_IWGRP | S_IWOTH)) == type) {}
  ~Opened() {
    if (opened_ >= 0) close(opened_);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

  bool is_missing() const { return is_missing_; }
  int descriptor() const { return is_safe_ ? opened_ : -1; }
  const struct stat& found() const { return found_; }
  /// Leaves the descriptor to the list, unless that is null.
  DIR* list() {
    DIR* const list = fdopendir(opened_);
    if (list) opened_ = -1;
    return list;
  }

 private:
  struct stat found_{};
  int opened_;
  const bool is_missing_;
  const bool is_safe_;
};

/// Whether a CodeFile has this name: a hash, with 7 characters more while it is written.
bool is_of_code(const std::string& name) {
  return name.find_first_not_of("0123456789abcdef") >= kHashLength &&
         (name.size() == kHashLength ||
          (name.size() == kHashLength + 7 && name[kHashLength] == '.'));
}

/// Removes files that writers have left that died, and over the limit those of the oldest last use.
void remove_old(int folder, std::size_t limit) {
  const std::unique_ptr<DIR, int (*)(DIR*)> list(Opened(folder, ".", O_DIRECTORY, S_IFDIR).list(),
                                                 closedir);
  std::vector<std::tuple<std::time_t, off_t, std::string>> files;
  while (const dirent* const each = list ? readdir(list.get()) : nullptr) {
    const std::string name = each->d_name;
    if (!is_of_code(name)) continue;
    const Opened file(folder, name, O_RDONLY);
    if (file.descriptor() < 0) continue;
    if (name.size() == kHashLength) {
      files.emplace_back(file.found().st_mtime, file.found().st_size, name);
    } else if (file.found().st_mtime < std::time(nullptr) - kHour) {
      unlinkat(folder, name.c_str(), 0);
    }
  }
  std::sort(files.rbegin(), files.rend());
  std::size_t bytes = 0;
  for (const auto& [last_use, size, name] : files) {
    bytes += static_cast<std::size_t>(size);
    if (bytes > limit) unlinkat(folder, name.c_str(), 0);
  }
}

}  // namespace

std::string code_cache_folder() {
  for (const auto& [variable, rest] :
       {std::pair("XDG_CACHE_HOME", "/gluon_syncbn"), std::pair("HOME", "/.cache/gluon_syncbn")}) {
    const char* const base = std::getenv(variable);
    if (!base || *base != '/') continue;
    const std::string path = std::string(base) + rest;
    const Opened folder(AT_FDCWD, path, O_DIRECTORY, S_IFDIR);
    // With sudo, HOME may belong to another user, who could not use a folder of root.
    struct stat found{};
    const bool can_be_made =
        folder.is_missing() && (stat(base, &found) != 0 || found.st_uid == geteuid());
    return folder.descriptor() >= 0 || can_be_made ? path : "";
  }
  return "";
}

CodeFile::CodeFile(const std::string& key, std::size_t limit)
    : limit_(limit), folder_(code_cache_folder()), name_(hash_of(key)) {}

std::string CodeFile::load() const {
  const Opened folder(AT_FDCWD, folder_, O_DIRECTORY, S_IFDIR);
  const Opened file(folder.descriptor(), name_, O_RDONLY);
  const auto size = static_cast<std::size_t>(file.found().st_size);
  if (file.descriptor() < 0 || size <= kHashLength || size > limit_) return "";
  std::string all(size, '\0');
  if (read(file.descriptor(), all.data(), size) != file.found().st_size) return "";
  std::string code = all.substr(kHashLength);
  if (all.compare(0, kHashLength, hash_of(code)) != 0) return "";
  futimens(file.descriptor(), nullptr);  // the time of the last use
  return code;
}

void CodeFile::save(const std::string& code) const {
  const std::string path = folder_ + "/";
  for (std::size_t end = 0; (end = path.find('/', end + 1)) != std::string::npos;) {
    mkdir(path.substr(0, end).c_str(), 0700);
  }
  const Opened folder(AT_FDCWD, folder_, O_DIRECTORY, S_IFDIR);
  if (folder.descriptor() < 0) return;
  const std::string all = hash_of(code) + code;
  for (int writer = 0; writer < kWriters; ++writer) {
    // A reader finds a whole file or none.
    const std::string own = name_ + "." + std::to_string(100000 + writer);
    const Opened file(folder.descriptor(), own, O_WRONLY | O_CREAT | O_EXCL);
    if (file.descriptor() < 0) continue;
    const auto size = static_cast<ssize_t>(all.size());
    if (write(file.descriptor(), all.data(), all.size()) != size ||
        renameat(folder.descriptor(), own.c_str(), folder.descriptor(), name_.c_str()) != 0) {
      unlinkat(folder.descriptor(), own.c_str(), 0);
    }
    break;
  }
  remove_old(folder.descriptor(), limit_);
}

}  // namespace gluon_syncbn
