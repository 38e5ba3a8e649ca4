#pragma once

#include <string>
#include <vector>

namespace fake_cuda {

/// A name of C++ with its template arguments, without namespaces: "a::f<b::c<3>, float*>" has the
/// head "f" and the arguments "c<3>" and "float*".
struct Name {
  std::string head;
  std::vector<Name> arguments;
  std::vector<Name> parameters{};  ///< their types, if this is a function

  bool is_pointer() const { return !head.empty() && head.back() == '*'; }
  /// Without what makes it a pointer.
  std::string element() const;
};

/// From the name of a function as the compiler wrote it.
Name parse_name(const std::string& mangled);

/// As people write it, for messages.
std::string readable(const std::string& mangled);

}  // namespace fake_cuda
