#include "cuda/backend.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "cuda/gpu.h"
#include "cuda/kernels/merge_devices.h"
#include "cuda/kernels/phases.h"
#include "norm/invertible.h"

// **Every wait is for work that is launched already.** So no round can wait forever, in any order
// of rounds and with any number of streams on the hardware queues of a GPU. Streams wait for no
// other stream. Before it launches the merge, the thread of a context waits for the sums of the
// peers, which they launched before they arrived; at last it waits for the outputs. For other
// processes, the thread of the first context waits for the sums of all. A device alone launches
// everything from the thread that calls it.

namespace gluon_syncbn::cuda {
namespace {

struct GpuPass : Pass {
  Gpu* gpu = nullptr;
  std::shared_ptr<Event> summed;            ///< after the kernels that write Pass::statistics
  Saved saved;                              ///< of a forward pass
  std::vector<PartialStatistics> to_merge;  ///< kept until the kernels that read them are done
  Pool<Memory>::Lease not_invertible;       ///< the first channel that is not invertible
};
using GpuPassPtr = std::shared_ptr<GpuPass>;

GpuPassPtr on_gpu(const PassPtr& pass) { return std::static_pointer_cast<GpuPass>(pass); }

constexpr std::uint32_t kNone = ~0u;
std::uint32_t* first_not_invertible(const GpuPass& pass) {
  return static_cast<std::uint32_t*>(pass.not_invertible->data());
}

/// Partial statistics in pinned memory, which kernels of all GPUs write and read.
PartialStatistics pinned(Gpu* gpu, std::int64_t count, std::int64_t channels) {
  const std::shared_ptr<Memory> memory = gpu->host_memory(2 * static_cast<std::size_t>(channels));
  return {count, channels, {memory, static_cast<double*>(memory->data())}};
}

/// Leases memory for the results of a forward pass. The normalizations lie first, because kernels
/// read them in accesses of 16 bytes.
Saved new_saved(Gpu* gpu, const ArrayKind& kind) {
  const auto channels = static_cast<std::size_t>(kind.layout.channels);
  const std::size_t doubles = dispatch(kind.dtype, [&](auto types) {
    return sizeof(StoredAffine<typename decltype(types)::Parameter>) / sizeof(double) * channels;
  });
  const std::shared_ptr<Memory> memory = gpu->memory(doubles + 2 * channels);
  auto* const mean = static_cast<double*>(memory->data()) + doubles;
  return {{memory, mean}, {memory, mean + channels}, {memory, memory->data()}, 0};
}

/// Returns a function that leases scratch memory. The caller keeps the function until it has
/// launched the kernels. Later kernels of the stream may then reuse the memory.
Scratch scratch_of(Gpu* gpu) {
  const auto taken = std::make_shared<std::vector<Pool<Memory>::Lease>>();
  return [gpu, taken](std::size_t doubles) {
    taken->push_back(gpu->memory(doubles));
    return static_cast<double*>(taken->back()->data());
  };
}

/// The kernels merge the messages themselves: on an H100, a merge on the host took longer.
Messages messages_of(const std::vector<PartialStatistics>& parts) {
  if (parts.size() > static_cast<std::size_t>(kMostDevices)) {
    throw Error("num_devices=" + std::to_string(parts.size()) + " where at most " +
                std::to_string(kMostDevices) + " GPU contexts can meet");
  }
  Messages messages{};
  for (const auto& part : parts) messages.add(part.numbers.get(), part.count);
  return messages;
}

template <class T>
DzInputs<T> dz_inputs_of(const Backward& work) {
  using P = Real<T>;
  return {work.activation,
          static_cast<const T*>(work.y),
          static_cast<const StoredAffine<P>*>(work.saved.normalizations.get()),
          work.inplace,
          work.saved.inv_std.get(),
          static_cast<const P*>(work.gamma),
          static_cast<const P*>(work.beta)};
}

void launch_sums(const GpuPass& pass) {
  dispatch(pass.kind().dtype, [&](auto types) {
    using T = typename decltype(types)::Data;
    const Layout& layout = pass.kind().layout;
    const Message message{pass.statistics.numbers.get(), layout.channels};
    const Scratch scratch = scratch_of(pass.gpu);
    Stream* const stream = pass.gpu->stream();
    if (const Forward* work = pass.forward()) {
      return moments(static_cast<const T*>(work->x), layout, scratch, message, stream);
    }
    const Backward& work = *pass.backward();
    gradient_sums(static_cast<const T*>(work.dy), static_cast<const T*>(work.x), layout,
                  work.saved.mean.get(), scratch, message, stream, dz_inputs_of<T>(work));
  });
}

/// Launches the merge and y. In inference the merge takes the running statistics.
template <class T>
void launch_outputs(const Forward& work, GpuPass* pass) {
  using P = Real<T>;
  ForwardMerge<P> merge{};
  if (work.is_inference) {
    merge.running_mean = static_cast<const P*>(work.running.mean);
    merge.running_variance = static_cast<const P*>(work.running.variance);
  } else {
    merge.messages = messages_of(pass->to_merge);
    pass->saved.count = merge.messages.count;
    if (pass->saved.count > 0) merge.averages = work.running.averages<P>();
  }
  merge.channels = work.kind.layout.channels;
  merge.eps = work.eps;
  merge.mean = pass->saved.mean.get();
  merge.inv_std = pass->saved.inv_std.get();
  merge.gamma = static_cast<const P*>(work.gamma);
  merge.beta = static_cast<const P*>(work.beta);
  merge.normalizations = static_cast<StoredAffine<P>*>(pass->saved.normalizations.get());
  *work.saved = pass->saved;
  normalize(static_cast<const T*>(work.x), work.kind.layout, merge, work.write,
            static_cast<T*>(work.y), scratch_of(pass->gpu), pass->gpu->stream(),
            {work.activation, static_cast<const T*>(work.shortcut)});
}

/// Launches the merge and the gradients.
template <class T>
void launch_outputs(const Backward& work, GpuPass* pass) {
  using P = Real<T>;
  const Gradients& gradients = work.gradients;
  if (!work.inplace && !gradients.gamma && !gradients.beta && !gradients.data &&
      !gradients.shortcut) {
    return;
  }
  BackwardMerge<P> merge{};
  if (work.inplace) {
    pass->not_invertible = pass->gpu->host_memory(1);
    *first_not_invertible(*pass) = kNone;
    merge.check = {Invertible::of(work.kind.dtype, work.activation), first_not_invertible(*pass)};
  }
  if (work.saved.count > 0) merge.messages = messages_of(pass->to_merge);
  merge.own = pass->statistics.numbers.get();
  merge.channels = work.kind.layout.channels;
  merge.mean = work.saved.mean.get();
  merge.inv_std = work.saved.inv_std.get();
  merge.gamma = static_cast<const P*>(work.gamma);
  merge.count = static_cast<double>(work.saved.count);
  merge.gamma_gradient_is_zero = work.gamma_gradient_is_zero();
  merge.gamma_gradient = work.gamma_gradient<P>();
  merge.beta_gradient = work.beta_gradient<P>();
  input_gradient(static_cast<const T*>(work.dy), static_cast<const T*>(work.x), work.kind.layout,
                 merge, gradients.write_data, static_cast<T*>(gradients.data),
                 scratch_of(pass->gpu), pass->gpu->stream(), dz_inputs_of<T>(work),
                 gradients.write_shortcut, static_cast<T*>(gradients.shortcut));
}

/// Returns the error that kernels have found in the arguments, or "". To be called after all work
/// of the pass.
std::string fault_in(GpuPass* pass) {
  if (!pass->not_invertible) return "";
  const std::uint32_t channel = *first_not_invertible(*pass);
  pass->not_invertible.reset();
  if (channel == kNone) return "";
  const Backward& work = *pass->backward();
  return dispatch(work.kind.dtype, [&](auto types) {
    using P = typename decltype(types)::Parameter;
    try {
      const auto here = pass->gpu->host_memory(2);
      auto* const parameters = static_cast<P*>(here->data());
      parameters[0] = 1;
      parameters[1] = 0;
      Stream* const stream = pass->gpu->stream();
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
    const std::string fault = fault_in(pass.get());
    if (first.empty()) first = fault;
    // Frees the memory for the next pass.
    pass->statistics = {};
    pass->to_merge.clear();
    pass->saved = {};
    std::exchange(pass->complete, nullptr)(first);
  });
}

/// Throws as Gpu::wait_for().
void wait_for_sums(const PassPtr& pass) {
  const GpuPassPtr summing = on_gpu(pass);
  summing->gpu->wait_for(*summing->summed);
}

/// Launches the merge and the outputs of `pass`. `parts` are to be merged. If `passes` are those of
/// all devices, it first waits for the sums of the others.
void finish_one(const GpuPassPtr& pass, const Passes& passes,
                const std::vector<PartialStatistics>& parts) {
  std::string error;
  std::optional<OnDevice> on_device;
  pass->to_merge = parts;
  try {
    on_device.emplace(pass->gpu->stream()->ordinal());
    for (const auto& each : passes) {
      if (each != pass) wait_for_sums(each);
    }
    dispatch(pass->kind().dtype, [&](auto types) {
      using T = typename decltype(types)::Data;
      std::visit([&](const auto& work) { launch_outputs<T>(work, pass.get()); }, pass->work);
    });
  } catch (const std::exception& caught) {
    error = caught.what();
  }
  complete_when_done(pass, error);
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
    // With use_global_stats, a backward pass may follow inference.
    if (forward && (!forward->is_inference || pass->gpu->has_peers())) load(*forward, pass->gpu);
    const OnDevice on_device(pass->gpu->stream()->ordinal());
    const ArrayKind& kind = pass->kind();
    // Before devices meet, so that all devices fail if one has no memory left.
    if (forward) pass->saved = new_saved(pass->gpu, kind);
    if (forward && forward->is_inference) return pass;
    pass->statistics = pinned(pass->gpu, kind.layout.count(), kind.layout.channels);
    pass->summed = pass->gpu->event();
    try {
      launch_sums(*pass);
      pass->summed->record(pass->gpu->stream());
    } catch (const std::exception&) {
      wait_for_all(pass->gpu);
      throw;
    }
    return pass;
  }

  void sum(const Passes& passes, Done then) const override {
    on_gpu(passes.front())->gpu->post([passes, then = std::move(then)] {
      std::string error;
      try {
        for (const auto& pass : passes) wait_for_sums(pass);
      } catch (const std::exception& caught) {
        error = caught.what();
      }
      then(error);
    });
  }

  void finish(const Passes& passes, const std::optional<PartialStatistics>& merged,
              const std::string& error) const override {
    std::vector<PartialStatistics> parts;
    std::string found = error;
    try {
      // All copies come before the first post: a pass that is done lets go of its statistics.
      if (error.empty() && !merged) parts = parts_of(passes);
      if (error.empty() && merged) parts = {in_pinned_memory(*merged, on_gpu(passes.front())->gpu)};
    } catch (const std::exception& caught) {
      found = caught.what();
    }
    if (!found.empty()) {
      for (const auto& pass : passes) complete_when_done(on_gpu(pass), found);
      return;
    }
    const Passes awaited = merged ? Passes() : passes;
    if (passes.size() == 1) return finish_one(on_gpu(passes.front()), awaited, parts);
    // The lock gives all GPUs one order of rounds, so shared running statistics stay equal.
    const auto lock = lock_running_statistics(passes.front()->direction());
    for (const auto& pass : passes) {
      on_gpu(pass)->gpu->post([pass, awaited, parts] { finish_one(on_gpu(pass), awaited, parts); });
    }
  }

  void fill_with_nan(int device, void* array, std::size_t bytes) const override {
    Stream* const stream = Gpu::of(device).stream();
    stream->fill(array, kNanByte, bytes);
    stream->synchronize();
  }

 private:
  static void load(const Forward& work, Gpu* gpu) {
    load_kernels({work.kind.dtype, work.kind.layout, work.activation.type, work.shortcut != nullptr,
                  work.inplace, work.running.num_batches != nullptr, gpu->has_peers()},
                 gpu->stream()->ordinal());
  }

  static PartialStatistics in_pinned_memory(const PartialStatistics& merged, Gpu* gpu) {
    const auto copy = pinned(gpu, merged.count, merged.channels);
    std::copy_n(merged.numbers.get(), 2 * merged.channels, copy.numbers.get());
    return copy;
  }

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
