#ifndef GLUON_SYNCBN_COMMON_RESULT_H_
#define GLUON_SYNCBN_COMMON_RESULT_H_

#include <memory>
#include <string>

namespace gluon_syncbn {

/// What an exchange gives to every device: the merged parts, or why there are none.
template <class Part>
struct Outcome {
  std::shared_ptr<const Part> merged;
  std::string error;

  explicit operator bool() const { return merged != nullptr; }
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_COMMON_RESULT_H_
