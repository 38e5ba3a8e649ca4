#include "fake_mxnet/resource.h"

#include <memory>
#include <mutex>
#include <vector>

namespace mxnet {
namespace resource {

class __attribute__((visibility("default"))) ResourceManagerImpl final : public ResourceManager {
 public:
  Resource Request(Context context, const ResourceRequest& request) override;
  void SeedRandom(std::uint32_t seed) override;
  void SeedRandom(Context context, std::uint32_t seed) override;
};

Resource ResourceManagerImpl::Request(Context context, const ResourceRequest& request) {
  return {request, this, context.dev_id, nullptr};
}

void ResourceManagerImpl::SeedRandom(std::uint32_t /*seed*/) {}
void ResourceManagerImpl::SeedRandom(Context /*context*/, std::uint32_t /*seed*/) {}

}  // namespace resource

namespace {

std::mutex the_mutex;
std::vector<std::unique_ptr<resource::ResourceManagerImpl>> the_managers;

}  // namespace

ResourceManager* ResourceManager::Get() {
  thread_local ResourceManager* own = nullptr;
  if (!own) {
    const std::lock_guard<std::mutex> lock(the_mutex);
    own = the_managers.emplace_back(std::make_unique<resource::ResourceManagerImpl>()).get();
  }
  return own;
}

}  // namespace mxnet

int gluon_syncbn::fake_mxnet::resource_managers() {
  const std::lock_guard<std::mutex> lock(mxnet::the_mutex);
  return static_cast<int>(mxnet::the_managers.size());
}
