#include "mxnet/repairs/cpu_workspaces.h"

#include <dlfcn.h>

#include <cstdint>
#include <exception>
#include <string>

#include "common/error.h"
#include "mxnet/repairs/mangled_names.h"
#include "mxnet/repairs/resource_managers.h"
#include "mxnet/repairs/vtable.h"

// Functions that replace functions of MXNet. Another copy of this library in the process recognizes
// them by their exported names.
#define GLUON_SYNCBN_REPLACEMENT extern "C" __attribute__((visibility("default")))

namespace gluon_syncbn::mxnet {
namespace {

/// The functions of MXNet.
ResourceFunctions the_originals{};

/// Returns the manager for `context` on the calling thread, whose manager in MXNet is `own`.
ResourceManager* manager_for(Context context, ResourceManager* own) {
  // The type is different for GPUs and for pinned and shared memory.
  if (context.dev_type != kCPUContext || context.dev_id == 0) return own;
  try {
    return ThreadManagers::instance().of(context.dev_id, the_originals);
  } catch (const std::exception& error) {
    // MXNet catches dmlc::Error alone (ExecuteOprBlock in mxnet/src/engine/threaded_engine.h).
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

void give_cpu_contexts_workspaces(const char* libmxnet) {
  void* library = dlopen(libmxnet, RTLD_NOW | RTLD_NOLOAD);
  if (!library) throw Error(std::string("libmxnet is not loaded: ") + dlerror());
  find(library, mangled::kGetManager, &the_originals.get);
  find(library, mangled::kRequest, &the_originals.request);
  find(library, mangled::kSeed, &the_originals.seed);
  find(library, mangled::kSeedContext, &the_originals.seed_context);
  const auto address = [](auto function) { return reinterpret_cast<void*>(function); };
  replace_virtual_functions(
      library, mangled::kManagerVtable,
      {{mangled::kRequest, "gluon_syncbn_request", address(&gluon_syncbn_request)},
       {mangled::kSeed, "gluon_syncbn_seed", address(&gluon_syncbn_seed)},
       {mangled::kSeedContext, "gluon_syncbn_seed_context", address(&gluon_syncbn_seed_context)}});
}

}  // namespace gluon_syncbn::mxnet
