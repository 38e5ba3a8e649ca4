#include "norm/activation.h"

#include <algorithm>
#include <iterator>

namespace gluon_syncbn {

const ActTypeTraits& traits_of(ActType type) {
  return *std::find_if(std::begin(kActTypes), std::end(kActTypes),
                       [type](const ActTypeTraits& each) { return each.type == type; });
}

}  // namespace gluon_syncbn
