#include "common/signature.h"

#include <sstream>

namespace gluon_syncbn {

std::optional<std::string> Signature::difference(const Signature& other) const {
  std::ostringstream text;
  text.precision(17);
  if (channels != other.channels) {
    text << "channels " << channels << " and " << other.channels;
  } else if (dtype != other.dtype) {
    text << "dtype " << dtype << " and " << other.dtype;
  } else if (eps != other.eps) {
    text << "eps " << eps << " and " << other.eps;
  } else if (momentum != other.momentum) {
    const auto write = [&text](const std::optional<double>& value) {
      if (value) {
        text << *value;
      } else {
        text << "None";
      }
    };
    text << "momentum ";
    write(momentum);
    text << " and ";
    write(other.momentum);
  } else {
    return std::nullopt;
  }
  return text.str();
}

}  // namespace gluon_syncbn
