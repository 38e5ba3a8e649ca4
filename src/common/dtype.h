#ifndef GLUON_SYNCBN_COMMON_DTYPE_H_
#define GLUON_SYNCBN_COMMON_DTYPE_H_

#include "common/half.h"

namespace gluon_syncbn {

/// What arrays of data hold.
enum class Element { kFloat32, kFloat64, kFloat16 };

/// What gamma, beta and the running statistics hold for such data, as in MXNet's BatchNorm: half
/// precision would lose small updates.
inline Element parameter_element(Element data) {
  return data == Element::kFloat16 ? Element::kFloat32 : data;
}

/// Data type T and parameter type P.
template <class T, class P>
struct ElementTypes {
  using Data = T;
  using Parameter = P;
};

/// Returns visit(ElementTypes<T, P>()) with the types of `element`.
template <class Visit>
auto with_types(Element element, const Visit& visit) {
  switch (element) {
    case Element::kFloat64:
      return visit(ElementTypes<double, double>());
    case Element::kFloat16:
      return visit(ElementTypes<Half, float>());
    case Element::kFloat32:
      break;
  }
  return visit(ElementTypes<float, float>());
}

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_COMMON_DTYPE_H_
