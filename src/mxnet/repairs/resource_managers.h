// A part of cpu_workspaces.

#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "mxnet/c_api.h"

namespace gluon_syncbn::mxnet {

/// mxnet::ResourceManager (mxnet/include/mxnet/resource.h): workspaces and random number
/// generators. Operations that use the same one wait for each other.
struct ResourceManager;

/// mxnet::Resource.
struct Resource {
  int type;
  void* variable;
  std::int32_t id;
  void* pointer;
};

/// mxnet::ResourceRequest.
struct ResourceRequest {
  int type;
};

/// Functions of mxnet::ResourceManager. Their arguments are plain data, so that this library can
/// call them although another compiler has built MXNet.
struct ResourceFunctions {
  /// Returns the calling thread's own manager, which its first call makes. MXNet never destroys it.
  ResourceManager* (*get)();
  Resource (*request)(ResourceManager* manager, Context context, const ResourceRequest& request);
  void (*seed)(ResourceManager* manager, std::uint32_t seed);
  void (*seed_context)(ResourceManager* manager, Context context, std::uint32_t seed);
};

/// The managers of the calling thread for cpu(1), cpu(2), ... A thread that ends leaves its
/// managers to the next thread that needs one for the same context.
class ThreadManagers {
 public:
  static ThreadManagers& instance();
  ~ThreadManagers();
  ThreadManagers(const ThreadManagers&) = delete;
  ThreadManagers& operator=(const ThreadManagers&) = delete;

  /// Makes the manager at the first call. Throws std::system_error if no thread can be started for
  /// that, and Error with MXNet's message if MXNet throws.
  ResourceManager* of(int device_id, const ResourceFunctions& mxnet);
  /// Seeds each context differently, and also the managers that are made later.
  void seed(std::uint32_t seed, const ResourceFunctions& mxnet);

 private:
  ThreadManagers() = default;

  std::map<int, ResourceManager*> managers_;
  std::optional<std::uint32_t> seed_;
};

}  // namespace gluon_syncbn::mxnet
