#include "mxnet/cpu_pools.h"

#include <dlfcn.h>

#include <cstdint>
#include <exception>
#include <string>

#include "common/error.h"
#include "mxnet/resource_managers.h"
#include "mxnet/vtable.h"

// These replace functions of MXNet, and are exported so that another copy of this library knows
// them by name.
#define GLUON_SYNCBN_REPLACEMENT extern "C" __attribute__((visibility("default")))

namespace gluon_syncbn::mxnet {
namespace {

constexpr const char* kVtable = "_ZTVN5mxnet8resource19ResourceManagerImplE";
constexpr const char* kGet = "_ZN5mxnet15ResourceManager3GetEv";
constexpr const char* kRequest =
    "_ZN5mxnet8resource19ResourceManagerImpl7RequestENS_7ContextERKNS_15ResourceRequestE";
constexpr const char* kSeed = "_ZN5mxnet8resource19ResourceManagerImpl10SeedRandomEj";
constexpr const char* kSeedContext =
    "_ZN5mxnet8resource19ResourceManagerImpl10SeedRandomENS_7ContextEj";

/// Those of MXNet.
ResourceFunctions the_originals{};

/// The one whose turn it is for `context` where the calling thread's own is `own`.
ResourceManager* manager_for(Context context, ResourceManager* own) {
  // Pinned and shared memory are contexts of other types.
  if (context.dev_type != kCPUContext || context.dev_id == 0) return own;
  try {
    return ThreadManagers::instance().of(context.dev_id, the_originals);
  } catch (const std::exception& error) {  // of which MXNet understands its own alone
    throw dmlc::Error("gluon_syncbn: cpu(" + std::to_string(context.dev_id) +
                      ") got no workspaces of its own: " + error.what());
  }
}

template <class Function>
void find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(find_symbol(library, name));
}

}  // namespace

GLUON_SYNCBN_REPLACEMENT Resource gluon_syncbn_request(ResourceManager* own, Context context,
                                                       const ResourceRequest& request) {
  return the_originals.request(manager_for(context, own), context, request);
}

GLUON_SYNCBN_REPLACEMENT void gluon_syncbn_seed(ResourceManager* own, std::uint32_t seed) {
  the_originals.seed(own, seed);
  ThreadManagers::instance().seed(seed, the_originals);
}

GLUON_SYNCBN_REPLACEMENT void gluon_syncbn_seed_context(ResourceManager* own, Context context,
                                                        std::uint32_t seed) {
  the_originals.seed_context(manager_for(context, own), context, seed);
}

void give_cpu_contexts_pools(const char* libmxnet) {
  void* library = dlopen(libmxnet, RTLD_NOW | RTLD_NOLOAD);
  if (!library) throw Error(std::string("libmxnet is not loaded: ") + dlerror());
  find(library, kGet, &the_originals.get);
  find(library, kRequest, &the_originals.request);
  find(library, kSeed, &the_originals.seed);
  find(library, kSeedContext, &the_originals.seed_context);
  const auto address = [](auto function) { return reinterpret_cast<void*>(function); };
  replace_virtual_functions(
      library, kVtable,
      {{kRequest, "gluon_syncbn_request", address(&gluon_syncbn_request)},
       {kSeed, "gluon_syncbn_seed", address(&gluon_syncbn_seed)},
       {kSeedContext, "gluon_syncbn_seed_context", address(&gluon_syncbn_seed_context)}});
}

}  // namespace gluon_syncbn::mxnet
