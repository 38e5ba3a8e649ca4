#ifndef GLUON_SYNCBN_MXNET_OPERATOR_H_
#define GLUON_SYNCBN_MXNET_OPERATOR_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/device.h"
#include "mxnet/attributes.h"
#include "mxnet/engine.h"
#include "mxnet/ndarray.h"
#include "mxnet/update_order.h"
#include "norm/backend.h"
#include "norm/moments.h"
#include "sync/sync_group.h"

namespace gluon_syncbn::mxnet {

/// Positions in what MXNet passes to the callbacks of an operator with three arguments, one output
/// and two auxiliary states, or three where it counts batches.
namespace forward_at {
enum : std::size_t { kData, kGamma, kBeta, kOut, kMovingMean, kMovingVar, kNumBatches };
}
namespace backward_at {
enum : std::size_t {
  kOutGrad,
  kData,
  kGamma,
  kBeta,
  kOut,
  kDataGrad,
  kGammaGrad,
  kBetaGrad,
  kMovingMean,
  kMovingVar,
  kNumBatches
};
}

/// The place of an operator among all that share running statistics on one device.
struct UpdatePlace {
  std::shared_ptr<UpdateOrder> order;
  std::size_t use = 0;
};

/// The training forwards of one graph node that await their backward pass, on every device.
///
/// A static graph runs the same operator in every step and puts no order between two of its copies
/// (a network called twice before backward), so that devices could pair the first call of one with
/// the second call of another. That is refused in the step in which it can be recognized.
class PendingForwards {
 public:
  /// `runs` counts the earlier training forwards of `op`. Throws Error.
  void begin(const Device& device, const std::shared_ptr<void>& op, std::uint64_t runs);
  void end(const Device& device, const std::shared_ptr<void>& op);

 private:
  struct Pending {
    std::weak_ptr<void> op;
    std::uint64_t runs = 0;
  };

  std::mutex mutex_;
  std::map<Device, Pending> pending_;
};

/// One use of the layer on one device. MXNet shares it between a forward pass and the backward
/// passes that follow from it, and runs these one after the other.
class Operator : public std::enable_shared_from_this<Operator> {
 public:
  /// `meeting` and `pending` may be empty where the layer has one device.
  Operator(Attributes attributes, Device device, std::shared_ptr<Backend> backend,
           std::shared_ptr<Meeting> meeting, std::shared_ptr<PendingForwards> pending,
           UpdatePlace update_place);

  /// Both return at once and complete on the engine.
  void forward(std::vector<NDArray> arrays, Request request, bool is_train);
  void backward(std::vector<NDArray> arrays, std::vector<Request> requests);

 private:
  /// What a backward pass needs of its forward pass, beside the input.
  struct Forward {
    std::shared_ptr<const Statistics> statistics;
    std::int64_t count = 0;        ///< elements per channel on all devices
    bool of_batch = false;         ///< false where the running statistics were used
    std::shared_ptr<Round> round;  ///< empty where nothing was synchronized
  };
  struct ForwardCall;
  struct BackwardCall;

  template <class Call>
  void push_call(std::shared_ptr<Call> call, const std::vector<std::size_t>& outputs,
                 const char* name,
                 void (Operator::*run)(const std::shared_ptr<Call>&, const Completion&));

  void run_forward(const std::shared_ptr<ForwardCall>& call, const Completion& completion);
  void finish_forward(const ForwardCall& call, const Moments& moments,
                      std::shared_ptr<Round> round);
  /// Null where every device computes for itself.
  std::shared_ptr<Share> share_of(const std::shared_ptr<ForwardCall>& call,
                                  const Completion& completion,
                                  const std::shared_ptr<Round>& round);
  std::shared_ptr<Share> share_of(const std::shared_ptr<BackwardCall>& call,
                                  const Completion& completion);
  /// `batch` is null if it moves nothing: it has no elements, or the forward pass has failed.
  Backend::Update update_of(const ForwardCall& call, Backend::StatisticsPtr batch) const;
  void normalize(const ForwardCall& call, const Statistics& statistics,
                 const Backend::Update& update) const;

  void run_backward(const std::shared_ptr<BackwardCall>& call, const Completion& completion);
  void finish_backward(const BackwardCall& call, const GradientSums& all_devices) const;
  Backend::Gradients gradients_of(const BackwardCall& call) const;

  /// What a device brings to an exchange: its share, begun, or where there is none compute().
  template <class Part, class Compute>
  static Part part_of(const std::shared_ptr<Share>& share, Exchange<Part>* exchange,
                      const Compute& compute);

  /// Meets the other devices under `exchange` with `part` and runs `finish` with what they merged,
  /// or `missed` where they have not met. `call` lives until the device is done with it.
  template <class Part, class Call, class FinishTask, class MissedTask>
  void meet(Exchange<Part>& exchange, Part part, std::shared_ptr<Call> call,
            const Completion& completion, const char* name, FinishTask finish, MissedTask missed);

  /// Completes once the device has done its work so far, with `error` or what it came upon, and
  /// keeps `kept` until then.
  template <class Kept>
  void complete(const Completion& completion, Kept kept, const std::string& error = "") const;
  /// Runs `task` and completes with what it throws. True where it did not.
  template <class Kept, class Task>
  bool guarded(const Kept& kept, const Completion& completion, const Task& task) const;
  /// `error` with the layer's name in front.
  std::string named(const std::string& error) const;

  /// Null for 1.
  const void* gamma(const NDArray& array) const;
  Backend::Data data_of(const NDArray& array) const;

  const Attributes attributes_;
  const Device device_;
  const std::shared_ptr<Backend> backend_;
  const std::shared_ptr<Meeting> meeting_;
  const std::shared_ptr<PendingForwards> pending_;
  const UpdatePlace update_place_;
  const Roll::Ticket ticket_;  ///< of the call that made this operator
  std::uint64_t runs_ = 0;     ///< training forwards begun
  std::shared_ptr<const Forward> forward_;
};

}  // namespace gluon_syncbn::mxnet

#endif  // GLUON_SYNCBN_MXNET_OPERATOR_H_
