#pragma once

#include <cstdint>

// Under the names of MXNet, which the library looks up.
namespace mxnet {

struct Context {
  int dev_type;
  std::int32_t dev_id;
};

struct ResourceRequest {
  int type;
};

class ResourceManager;

struct Resource {
  ResourceRequest request;
  const ResourceManager* manager;  ///< in place of a variable
  std::int32_t id;
  void* space;
};

class __attribute__((visibility("default"))) ResourceManager {
 public:
  virtual Resource Request(Context context, const ResourceRequest& request) = 0;
  virtual void SeedRandom(std::uint32_t seed) = 0;
  virtual void SeedRandom(Context context, std::uint32_t seed) = 0;
  virtual ~ResourceManager() = default;

  /// The calling thread's own, which lives until the process ends.
  static ResourceManager* Get();
};

}  // namespace mxnet

namespace gluon_syncbn::fake_mxnet {

/// How many managers were made.
int resource_managers();

}  // namespace gluon_syncbn::fake_mxnet
