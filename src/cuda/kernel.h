#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <typeinfo>

#include "cuda/compiler.h"
#include "cuda/runtime.h"

struct CUfunc_st;

namespace gluon_syncbn::cuda {

/// A kernel, which is compiled once for each kind of GPU, and loaded once to each GPU.
class Kernel {
 public:
  /// Returns the kernel of a body (kernels/body.h), which lives as long as the process.
  template <class Body>
  static Kernel& of() {
    static_assert(std::is_trivially_copyable_v<Body>);
    static Kernel& kernel = *new Kernel(typeid(Body), Body::kName, sizeof(Body), alignof(Body));
    return kernel;
  }

  const KernelSource& source() const { return source_; }

  /// Compiles the kernel and loads it to a GPU. Returns at once if it is there. Throws Error.
  CUfunc_st* load(int ordinal);
  /// Loads the kernel if it is not there. This may wait for all kernels that run.
  void launch(const void* body, std::int64_t blocks, int threads, Stream* stream);

 private:
  Kernel(const std::type_info& body, const char* name, std::size_t bytes, std::size_t alignment);
  const std::string& code_for(const std::string& architecture);

  const std::string name_;
  const KernelSource source_;
  std::array<std::atomic<CUfunc_st*>, kMostGpus> functions_{};  // by GPU
  std::mutex mutex_;
  std::map<std::string, std::string> codes_;  // by architecture
};

/// Puts kernels on a stream. A rehearsal launches nothing: it loads the kernels, those for other
/// layouts too. A rehearsal of outputs takes the same scratch memory.
struct Launcher {
  Stream* stream;
  /// Gives memory of the GPU to the kernels that are launched next.
  std::function<double*(std::size_t doubles)> scratch;
  bool is_rehearsal = false;

  template <class Body>
  void launch(const Body& body, std::int64_t blocks) const {
    if (is_rehearsal) return load<Body>();
    Kernel::of<Body>().launch(&body, blocks, Body::kBlockThreads, stream);
  }
  template <class Body>
  void launch(const Body& body) const {
    launch(body, body.blocks());
  }
  template <class... Bodies>
  void load() const {
    (Kernel::of<Bodies>().load(stream->ordinal()), ...);
  }
};

}  // namespace gluon_syncbn::cuda
