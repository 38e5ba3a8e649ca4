#ifndef GLUON_SYNCBN_CUDA_PART_H_
#define GLUON_SYNCBN_CUDA_PART_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "cuda/gpu.h"
#include "norm/moments.h"

namespace gluon_syncbn::cuda {

/// Two numbers for every channel: those of one device for its peers, or those of other processes
/// for all devices of this one.
struct Part : RemotePart, std::enable_shared_from_this<Part> {
  /// With room for so many numbers.
  Part(Gpu* gpu_in, std::size_t doubles_in, std::int64_t count_in)
      : Part(gpu_in, gpu_in->message(doubles_in), doubles_in, count_in) {}
  Part(Gpu* gpu_in, Gpu::Message message_in, std::size_t doubles_in, std::int64_t count_in)
      : gpu(gpu_in), message(std::move(message_in)), doubles(doubles_in), count(count_in) {}

  Gpu* gpu;
  Gpu::Message message;
  std::size_t doubles;
  std::int64_t count;  // elements per channel

  /// Where kernels that come next on the stream of `reader` find the numbers: in place, or in
  /// memory that `room` gives, where they come from the host, because every block reads them, or
  /// where these kernels cannot read them in place.
  const double* read_by(Gpu* reader, const std::function<double*(std::size_t)>& room) const;

  void fetch(Then then) const override;
  std::shared_ptr<const RemotePart> with(const FlatPart& part) const override;

  static const Part& of(const std::shared_ptr<const RemotePart>& part) {
    return static_cast<const Part&>(*part);
  }

 private:
  bool is_on_host() const { return message.memory->place() == Memory::Place::kHost; }
};

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_PART_H_
