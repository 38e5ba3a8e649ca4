#include "cuda/backend.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/watchdog.h"
#include "cuda/gpu.h"
#include "cuda/kernel.h"
#include "cuda/kernels/messages.h"
#include "cuda/kernels/phases.h"
#include "norm/coefficients.h"
#include "norm/invertible.h"

// **Every wait is for work that is launched already.** So no round can wait forever, in any order
// of rounds and with any number of streams on the hardware queues of a GPU. Streams wait for no
// other stream, and threads wait for no other thread. The thread of a context waits for its own
// sums, which it launched before it arrived, and at last for its outputs. After the last sums, the
// threads of all contexts launch the merge and the outputs. A device alone launches everything from
// the thread that calls it.
//
// **What can fail comes before devices meet**, so that all devices fail: memory and kernels.

namespace gluon_syncbn::cuda {
namespace {

using Parts = std::shared_ptr<const std::vector<PartialStatistics>>;

struct GpuPass : Pass {
  Gpu* gpu = nullptr;
  std::shared_ptr<Event> summed;  ///< after the kernels that write Pass::statistics
  Saved saved;                    ///< of a forward pass
  /// Where the first device of a process gets the statistics of all processes.
  PartialStatistics merged;
  Parts to_merge;  ///< kept until the kernels that read them are done
  /// In place: the first channel that is not invertible, and room for its gamma and beta.
  Pool<Memory>::Lease check;
  std::vector<Pool<Memory>::Lease> scratch;  ///< of the outputs
};
using GpuPassPtr = std::shared_ptr<GpuPass>;

GpuPassPtr on_gpu(const PassPtr& pass) { return std::static_pointer_cast<GpuPass>(pass); }

constexpr std::uint32_t kNone = ~0u;
std::uint32_t* first_not_invertible(const GpuPass& pass) {
  return static_cast<std::uint32_t*>(pass.check->data());
}

/// Partial statistics in pinned memory, which kernels of all GPUs write and read.
PartialStatistics pinned(Gpu* gpu, std::int64_t count, std::int64_t channels) {
  const std::shared_ptr<Memory> memory = gpu->host_memory(2 * static_cast<std::size_t>(channels));
  return {count, channels, {memory, static_cast<double*>(memory->data())}};
}

Parts one_part(const PartialStatistics& part) {
  return std::make_shared<std::vector<PartialStatistics>>(1, part);
}
Parts all_parts(const Passes& passes) {
  return std::make_shared<std::vector<PartialStatistics>>(parts_of(passes));
}

/// Leases memory for the results of a forward pass. The normalizations lie first, because kernels
/// read them in accesses of 16 bytes.
Saved new_saved(Gpu* gpu, const ArrayKind& kind) {
  const auto channels = static_cast<std::size_t>(kind.layout.channels);
  const std::size_t doubles = dispatch(kind.dtype, [&](auto types) {
    return sizeof(Affine<typename decltype(types)::Parameter>) / sizeof(double) * channels;
  });
  const std::shared_ptr<Memory> memory = gpu->memory(doubles + 2 * channels);
  auto* const mean = static_cast<double*>(memory->data()) + doubles;
  return {{memory, mean}, {memory, mean + channels}, {memory, memory->data()}, 0};
}

double* lease(Gpu* gpu, std::size_t doubles, std::vector<Pool<Memory>::Lease>* leases) {
  leases->push_back(gpu->memory(doubles));
  return static_cast<double*>(leases->back()->data());
}

/// The kernels merge the messages themselves: on an H100, a merge on the host took longer.
Messages messages_of(const Parts& parts) {
  Messages messages{};
  if (!parts) return messages;  // in a rehearsal
  if (parts->size() > static_cast<std::size_t>(kMostDevices)) {
    throw Error("num_devices=" + std::to_string(parts->size()) + " where at most " +
                std::to_string(kMostDevices) + " GPU contexts can meet");
  }
  for (const auto& part : *parts) messages.add(part.numbers.get(), part.count);
  return messages;
}

Message message_of(const GpuPass& pass) {
  return {pass.statistics.numbers.get(), pass.kind().layout.channels};
}

void launch_outputs(GpuPass* pass, const Launcher& launcher) {
  if (const Forward* work = pass->forward()) {
    const Messages messages = messages_of(pass->to_merge);
    if (!work->is_inference) pass->saved.count = messages.count;
    return launch_outputs(*work, messages, pass->saved, launcher);
  }
  const Backward& work = *pass->backward();
  const Gradients& gradients = work.gradients;
  if (!work.inplace() && !gradients.gamma && !gradients.beta && !gradients.data &&
      !gradients.shortcut) {
    return;
  }
  launch_outputs(work, work.saved.count > 0 ? messages_of(pass->to_merge) : Messages{},
                 pass->statistics.numbers.get(),
                 pass->check ? first_not_invertible(*pass) : nullptr, launcher);
}

/// Compiles the kernels of a step, forward and backward, and loads them to the GPU, unless they are
/// there. A load can wait for kernels of NCCL, which wait for launches of other GPUs. So no GPU may
/// wait for this one meanwhile.
void load_kernels(const Forward& forward, Gpu* gpu) {
  GpuPass pass;
  pass.gpu = gpu;
  const auto rehearse = [&](const Work& work) {
    pass.work = work;
    const Launcher launcher{gpu->stream(), [](std::size_t) { return nullptr; }, true};
    launch_sums(work, message_of(pass), launcher);
    launch_outputs(&pass, launcher);
  };
  Forward first = forward;
  first.kind.layout = {0, forward.kind.layout.channels, 1};  // takes no memory
  first.is_inference = false;  // With use_global_stats, a backward pass may follow inference.
  pass.to_merge = one_part({1, first.kind.layout.channels, {}});
  rehearse(first);
  Backward second;
  second.kind = first.kind;
  second.dz_from = forward.dz_from;
  second.activation = forward.activation;
  second.gradients.data = &pass;  // Nothing uses it: the layout has no elements.
  rehearse(second);
  if (!forward.shortcut) return;
  second.gradients.shortcut = &pass;
  rehearse(second);
}

/// Leases the memory that launch_outputs() needs.
void lease_scratch(GpuPass* pass) {
  launch_outputs(
      pass, {pass->gpu->stream(),
             [&](std::size_t doubles) { return lease(pass->gpu, doubles, &pass->scratch); }, true});
}

/// Returns the error that kernels have found in the arguments, or "". To be called after all work
/// of the pass.
std::string fault_in(const GpuPass& pass) {
  if (!pass.check) return "";
  const std::uint32_t channel = *first_not_invertible(pass);
  if (channel == kNone) return "";
  const Backward& work = *pass.backward();
  return dispatch(work.kind.dtype, [&](auto types) {
    using P = typename decltype(types)::Parameter;
    try {
      auto* const parameters = reinterpret_cast<P*>(static_cast<double*>(pass.check->data()) + 1);
      parameters[0] = 1;
      parameters[1] = 0;
      Stream* const stream = pass.gpu->stream();
      const auto get = [&](P* to, const void* from) {
        if (from) stream->copy(to, static_cast<const P*>(from) + channel, sizeof(P));
      };
      get(&parameters[0], work.gamma);
      get(&parameters[1], work.beta);
      stream->synchronize();
      return Invertible::of(work.kind.dtype, work.activation)
          .error(channel, static_cast<double>(parameters[0]), static_cast<double>(parameters[1]));
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
  });
}

void complete_when_done(const GpuPassPtr& pass, const std::string& error) {
  pass->gpu->when_done([pass, error](const std::string& found) {
    // A fault in the arguments may be the consequence of a failed operation, so it comes last.
    std::string first = error.empty() ? found : error;
    const std::string fault = fault_in(*pass);
    if (first.empty()) first = fault;
    // Frees the memory for the next pass.
    pass->statistics = {};
    pass->merged = {};
    pass->to_merge = nullptr;
    pass->saved = {};
    pass->check = nullptr;
    pass->scratch.clear();
    std::exchange(pass->complete, nullptr)(first);
  });
}

void fail_all(const Passes& passes, const std::string& error) {
  for (const auto& pass : passes) complete_when_done(on_gpu(pass), error);
}

/// Launches the merge and the outputs of `pass`. `parts` are to be merged.
void finish_one(const GpuPassPtr& pass, const Parts& parts) {
  std::string error;
  std::optional<OnDevice> on_device;
  pass->to_merge = parts;
  try {
    on_device.emplace(pass->gpu->stream()->ordinal());
    auto next = pass->scratch.begin();
    launch_outputs(pass.get(), {pass->gpu->stream(), [&](std::size_t doubles) {
                                  GLUON_SYNCBN_ENFORCE(next != pass->scratch.end() &&
                                                           (*next)->bytes() >= 8 * doubles,
                                                       "outputs need more memory than is leased");
                                  return static_cast<double*>((*next++)->data());
                                }});
    pass->scratch.clear();  // Later kernels of the stream may use it.
    if (const Forward* forward = pass->forward()) *forward->saved = pass->saved;
  } catch (const std::exception& caught) {
    error = caught.what();
  }
  complete_when_done(pass, error);
}

/// The same for all devices of a round.
void finish_all(const Passes& passes, const Parts& parts) {
  // The lock gives all GPUs one order of rounds, so shared running statistics stay equal.
  const auto lock = lock_running_statistics(passes.front()->direction());
  for (const auto& pass : passes) {
    on_gpu(pass)->gpu->post([pass, parts] { finish_one(on_gpu(pass), parts); });
  }
}

/// Calls `then` when the sums of all passes are done, or have failed.
void when_summed(const Passes& passes, Done then) {
  struct Sums {
    std::mutex mutex;
    std::size_t missing;
    std::string error;
    Done then;
  };
  const auto sums = std::make_shared<Sums>();
  sums->missing = passes.size();
  sums->then = std::move(then);
  const auto count_down = [sums](const std::string& error) {
    {
      const std::lock_guard<std::mutex> lock(sums->mutex);
      if (sums->error.empty()) sums->error = error;
      if (--sums->missing > 0) return;
    }
    sums->then(sums->error);
  };
  for (const auto& pass : passes) {
    on_gpu(pass)->gpu->when_reached(on_gpu(pass)->summed, count_down,
                                    Watchdog::instance().timeout());
  }
}

class CudaBackend : public Backend {
 public:
  PassPtr begin(int device, Work work, Done complete) const override {
    const auto pass = std::make_shared<GpuPass>();
    pass->work = std::move(work);
    pass->complete = std::move(complete);
    pass->backend = this;
    pass->gpu = &Gpu::of(device);
    const Forward* const forward = pass->forward();
    if (forward) load_kernels(*forward, pass->gpu);
    const OnDevice on_device(pass->gpu->stream()->ordinal());
    const ArrayKind& kind = pass->kind();
    if (forward) pass->saved = new_saved(pass->gpu, kind);
    if (!forward && pass->backward()->inplace()) {
      pass->check = pass->gpu->host_memory(3);
      *first_not_invertible(*pass) = kNone;
    }
    lease_scratch(pass.get());
    if (forward && forward->is_inference) return pass;
    pass->statistics = pinned(pass->gpu, kind.layout.count(), kind.layout.channels);
    pass->summed = pass->gpu->event();
    try {
      // Later kernels of the stream may use this memory.
      std::vector<Pool<Memory>::Lease> scratch;
      launch_sums(pass->work, message_of(*pass), {pass->gpu->stream(), [&](std::size_t doubles) {
                                                    return lease(pass->gpu, doubles, &scratch);
                                                  }});
      pass->summed->record(pass->gpu->stream());
    } catch (const std::exception&) {
      wait_for_all(pass->gpu);
      throw;
    }
    return pass;
  }

  void sum(const Passes& passes, Done then) const override {
    GpuPass& first = *on_gpu(passes.front());
    try {
      first.merged = pinned(first.gpu, 0, first.kind().layout.channels);
    } catch (const std::exception& error) {
      return then(error.what());
    }
    when_summed(passes, std::move(then));
  }

  void finish(const Passes& passes, const std::optional<PartialStatistics>& merged,
              const std::string& error) const override {
    if (!error.empty()) return fail_all(passes, error);
    if (merged) {
      PartialStatistics& all = on_gpu(passes.front())->merged;
      all.count = merged->count;
      std::copy_n(merged->numbers.get(), 2 * merged->channels, all.numbers.get());
      return finish_all(passes, one_part(all));
    }
    if (passes.size() == 1) return finish_one(on_gpu(passes.front()), all_parts(passes));
    when_summed(passes, [passes](const std::string& found) {
      found.empty() ? finish_all(passes, all_parts(passes)) : fail_all(passes, found);
    });
  }

  void fill_with_nan(int device, void* array, std::size_t bytes) const override {
    Stream* const stream = Gpu::of(device).stream();
    stream->fill(array, kNanByte, bytes);
    stream->synchronize();
  }

 private:
  /// Some kernels of a pass that fails may use its arrays.
  static void wait_for_all(Gpu* gpu) {
    try {
      gpu->stream()->synchronize();
    } catch (const Error&) {
      // The device is lost, or its error is that of the pass.
    }
  }
};

}  // namespace

const Backend& backend_of(int index, const std::string& layer) {
  static const Backend& backend = *new CudaBackend;
  try {
    Gpu::of(index);
  } catch (const Error& error) {
    throw Error(layer + ": " + error.what());
  }
  return backend;
}

}  // namespace gluon_syncbn::cuda
