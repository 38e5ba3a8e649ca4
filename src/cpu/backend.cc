#include "cpu/backend.h"

#include <cstddef>
#include <cstring>
#include <utility>

#include "cpu/passes.h"

namespace gluon_syncbn::cpu {
namespace {

class CpuBackend : public Backend {
 public:
  std::shared_ptr<DevicePass> forward(const Forward& work, std::shared_ptr<Call> call) override {
    return forward_pass(work, std::move(call));
  }

  std::shared_ptr<DevicePass> backward(const Backward& work, std::shared_ptr<Call> call) override {
    return backward_pass(work, std::move(call));
  }

  void inference(const Forward& work, std::shared_ptr<Call> call) override {
    cpu::inference(work);
    call->complete("");
  }

  void fill_with_nan(void* array, std::size_t bytes) override {
    if (bytes > 0) std::memset(array, kNanByte, bytes);
  }
};

}  // namespace

const std::shared_ptr<Backend>& backend() {
  static const std::shared_ptr<Backend>& backend =
      *new std::shared_ptr<Backend>(std::make_shared<CpuBackend>());
  return backend;
}

}  // namespace gluon_syncbn::cpu
