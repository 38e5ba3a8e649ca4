#ifndef GLUON_SYNCBN_SYNC_ADVICE_H_
#define GLUON_SYNCBN_SYNC_ADVICE_H_

#include <string>

namespace gluon_syncbn {

/// What messages say to users in the words of the host program, which this library's core does not
/// know. Whole sentences or ends of such; empty: nothing.
struct Advice {
  std::string timeout;          ///< " (how to set it)"
  std::string more_devices;     ///< what to do if more devices come than should
  std::string inference;        ///< ", how a call comes to be in inference mode"
  std::string forward_causes;   ///< why a device may be missing in forward
  std::string backward_causes;  ///< why one may be missing in backward
};

inline const Advice kNoAdvice;

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_SYNC_ADVICE_H_
