#include "cuda/code_cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace gluon_syncbn::cuda {
namespace {

constexpr std::size_t kHashLength = 32;

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

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}
bool is_absolute(const std::string& path) { return !path.empty() && path.front() == '/'; }

}  // namespace

std::string code_cache_folder() {
  std::string base = variable("XDG_CACHE_HOME");
  std::string folder = base + "/gluon_syncbn";
  if (!is_absolute(base)) {
    base = variable("HOME");
    if (!is_absolute(base)) return "";
    folder = base + "/.cache/gluon_syncbn";
  }
  struct stat found{};
  if (stat(folder.c_str(), &found) != 0) {
    // With sudo, HOME may belong to another user, who could not use a folder of root.
    const bool is_foreign = stat(base.c_str(), &found) == 0 && found.st_uid != geteuid();
    return is_foreign ? "" : folder;
  }
  const bool is_safe = found.st_uid == geteuid() && (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  return is_safe && S_ISDIR(found.st_mode) ? folder : "";
}

CodeFile::CodeFile(const std::string& key) {
  const std::string folder = code_cache_folder();
  if (!folder.empty()) path_ = folder + "/" + hash_of(key);
}

std::string CodeFile::load() const {
  std::ostringstream text;
  if (const std::ifstream file(path_, std::ios::binary); file) text << file.rdbuf();
  const std::string all = text.str();
  if (all.size() <= kHashLength) return "";
  std::string code = all.substr(kHashLength);
  return all.compare(0, kHashLength, hash_of(code)) == 0 ? code : "";
}

void CodeFile::save(const std::string& code) const {
  if (path_.empty()) return;
  for (std::size_t end = path_.find('/', 1); end != std::string::npos;
       end = path_.find('/', end + 1)) {
    mkdir(path_.substr(0, end).c_str(), 0700);
  }
  // A reader finds a whole file or none.
  std::string own = path_ + ".XXXXXX";
  const int file = mkstemp(own.data());
  if (file < 0) return;
  const std::string all = hash_of(code) + code;
  const bool is_written = write(file, all.data(), all.size()) == static_cast<ssize_t>(all.size());
  close(file);
  if (!is_written || std::rename(own.c_str(), path_.c_str()) != 0) unlink(own.c_str());
}

}  // namespace gluon_syncbn::cuda
