#ifndef GLUON_SYNCBN_NORM_STATISTICS_H_
#define GLUON_SYNCBN_NORM_STATISTICS_H_

namespace gluon_syncbn {

/// Mean, variance and inverse deviation of every channel, where and how the backend that made them
/// keeps them.
class Statistics {
 public:
  virtual ~Statistics() = default;
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_NORM_STATISTICS_H_
