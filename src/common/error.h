#ifndef GLUON_SYNCBN_COMMON_ERROR_H_
#define GLUON_SYNCBN_COMMON_ERROR_H_

#include <stdexcept>
#include <string>

namespace gluon_syncbn {

/// Every failure this library reports. Hosts catch it as std::exception; its layout is that of
/// std::runtime_error, which hosts compiled by another compiler rely on.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_COMMON_ERROR_H_
