#ifndef GLUON_SYNCBN_MXNET_RESOURCE_MANAGERS_H_
#define GLUON_SYNCBN_MXNET_RESOURCE_MANAGERS_H_

#include <cstdint>
#include <map>
#include <optional>

#include "mxnet/c_api.h"

namespace gluon_syncbn::mxnet {

/// mxnet::ResourceManager: workspaces, and states of random number generators, for which the
/// operations that one thread calls wait in turn.
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

/// Functions of mxnet::ResourceManager. Plain data passes through them, so that another compiler's
/// library can call them.
struct ResourceFunctions {
  /// The calling thread's own manager, made by its first call. Lives until the process ends.
  ResourceManager* (*get)();
  Resource (*request)(ResourceManager* manager, Context context, const ResourceRequest& request);
  void (*seed)(ResourceManager* manager, std::uint32_t seed);
  void (*seed_context)(ResourceManager* manager, Context context, std::uint32_t seed);
};

/// The managers of the calling thread for cpu(1), cpu(2), ..., each made when it is first asked
/// for. A thread that ends leaves them to the next one that asks for these contexts.
class ThreadManagers {
 public:
  static ThreadManagers& instance();
  ~ThreadManagers();
  ThreadManagers(const ThreadManagers&) = delete;
  ThreadManagers& operator=(const ThreadManagers&) = delete;

  /// Throws std::system_error if no thread can be started to make it, and Error with MXNet's
  /// message if MXNet throws.
  ResourceManager* of(int device_id, const ResourceFunctions& mxnet);
  /// Seeds them all, and those that are still to come: each context differently.
  void seed(std::uint32_t seed, const ResourceFunctions& mxnet);

 private:
  ThreadManagers() = default;

  std::map<int, ResourceManager*> managers_;
  std::optional<std::uint32_t> seed_;
};

}  // namespace gluon_syncbn::mxnet

#endif  // GLUON_SYNCBN_MXNET_RESOURCE_MANAGERS_H_
