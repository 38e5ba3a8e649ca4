#pragma once

#include <string>

namespace gluon_syncbn::cuda {

/// The folder of compiled kernels: $XDG_CACHE_HOME/gluon_syncbn, or ~/.cache/gluon_syncbn. It may
/// not exist yet. Empty without an absolute path, and if the folder or its home belongs to another
/// user, or if others can write there, because a GPU would run their code.
std::string code_cache_folder();

/// A file of compiled code in that folder. Other processes may read and write it at the same time.
/// Without a folder, load() finds nothing and save() does nothing.
class CodeFile {
 public:
  /// `key` is everything that the code depends on.
  explicit CodeFile(const std::string& key);
  /// Returns "" if there is no file, or if it is damaged.
  std::string load() const;
  /// Makes the folder if there is none.
  void save(const std::string& code) const;

 private:
  std::string path_;  // empty: none
};

}  // namespace gluon_syncbn::cuda
