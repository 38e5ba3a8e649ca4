#pragma once

#include <cstddef>
#include <string>

namespace gluon_syncbn {

/// The folder of compiled kernels: $XDG_CACHE_HOME/gluon_syncbn, or ~/.cache/gluon_syncbn. It may
/// not exist yet. Empty without an absolute path, and if the folder or its home belongs to another
/// user, or if others can write there, because a GPU would run their code. Empty also for a link,
/// which the owner of the folder above may have put there.
std::string code_cache_folder();

/// A file of compiled code in that folder. Other processes may read, write and remove it at the
/// same time. Without a folder, load() finds nothing and save() does nothing.
class CodeFile {
 public:
  /// All kernels of one architecture take 1.8 MB. This is room for 35 GPUs, versions and compilers.
  static constexpr std::size_t kLimit = 64 << 20;

  /// `key` is everything that the code depends on. `limit` is the number of bytes in the folder.
  explicit CodeFile(const std::string& key, std::size_t limit = kLimit);
  /// Returns "" if there is no file, or if it is damaged.
  std::string load() const;
  /// Makes the folder if there is none. Over the limit, removes the files whose last use is the
  /// longest ago. No file that another program made is removed.
  void save(const std::string& code) const;

 private:
  const std::size_t limit_;
  const std::string folder_;  // empty: none
  const std::string name_;
};

}  // namespace gluon_syncbn
