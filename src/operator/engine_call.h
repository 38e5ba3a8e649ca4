#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "mxnet/c_api.h"
#include "mxnet/engine.h"
#include "mxnet/ndarray.h"
#include "operator/operator.h"

namespace gluon_syncbn::op {

/// A call of the operator: one operation of the engine, from its push to its completion.
class EngineCall : public std::enable_shared_from_this<EngineCall> {
 public:
  /// `outputs` are positions in `arrays`. If the call fails, it writes NaN into `results`, which
  /// are some of `outputs`.
  EngineCall(std::shared_ptr<Operator> op, std::vector<mxnet::NDArray> arrays,
             std::vector<std::size_t> outputs, std::vector<std::size_t> results);
  virtual ~EngineCall() = default;

  /// Pushes the call to the engine, which runs it once the arrays are ready. Profilers show `name`.
  void push(const char* name);

  /// Called once, from any thread. Nothing uses the arrays any more. `error` says what went wrong,
  /// or is "".
  virtual void complete(const std::string& error);

 protected:
  /// An exception of run() becomes the error of the call.
  virtual void run() = 0;
  virtual bool is_training() const { return true; }

  const mxnet::NDArray& array(std::size_t position) const { return arrays_[position]; }
  void* data(std::size_t position) const { return arrays_[position].data<void>(); }
  /// Returns null if gamma is fixed at 1.
  const void* gamma(std::size_t position) const;
  ArrayKind kind_of(const mxnet::NDArray& array) const;
  /// Begins a pass, which will complete this call.
  PassPtr begin(Work work);

  const std::shared_ptr<Operator> op_;

 private:
  void fill_results_with_nan() const noexcept;

  std::vector<mxnet::NDArray> arrays_;
  const std::vector<std::size_t> outputs_;
  const std::vector<std::size_t> results_;
  std::optional<mxnet::Completion> completion_;
  std::string error_;
};

WriteMode write_of(mxnet::OpReq request);

}  // namespace gluon_syncbn::op
