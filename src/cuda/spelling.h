#pragma once

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <typeinfo>

namespace gluon_syncbn::cuda {

/// The type as C++ spells it, such as "gluon_syncbn::cuda::PerChannel<...>".
inline std::string spelling_of(const std::type_info& type) {
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, nullptr), &std::free);
  return text.get();
}

}  // namespace gluon_syncbn::cuda
