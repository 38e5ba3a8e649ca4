#include "mxnet/repairs/openblas.h"

#include <dlfcn.h>
#include <link.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "common/error.h"
#include "mxnet/c_api.h"

namespace gluon_syncbn::mxnet {
namespace {

constexpr const char* kPrefix = "scipy_";

// openblas_get_parallel() returns this if OpenBLAS uses the threads of OpenMP.
constexpr int kOpenMP = 2;

/// A library that computes matrix products.
class Blas {
 public:
  Blas() = default;

  explicit Blas(const char* file) : file_(file), library_(dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
    if (!library_) throw Error(dlerror());
    if (dlsym(library_, (std::string(kPrefix) + "openblas_get_config").c_str())) prefix_ = kPrefix;
    const auto config = function<const char* (*)()>("openblas_get_config");
    if (!config) return;
    config_ = config();
    std::sscanf(config_.c_str(), "OpenBLAS %d.%d.%d", &version_[0], &version_[1], &version_[2]);
  }

  /// Returns null if the library has no function of this name.
  template <class Function>
  Function function(const std::string& name) const {
    if (!library_) return nullptr;
    return reinterpret_cast<Function>(dlsym(library_, (prefix_ + name).c_str()));
  }

  bool is_openblas() const { return !config_.empty(); }
  bool is_older_than(const Blas& other) const { return version_ < other.version_; }
  bool has_long_integers() const { return config_.find("USE64BITINT") != std::string::npos; }
  bool has_openmp() const {
    const auto parallel = function<int (*)()>("openblas_get_parallel");
    return parallel && parallel() == kOpenMP;
  }

  std::string describe() const {
    if (!library_) return "unknown";
    const auto kernels = function<const char* (*)()>("openblas_get_corename");
    if (!is_openblas() || !kernels) return file_;
    const std::string version = config_.substr(0, config_.find(' ', std::strlen("OpenBLAS ")));
    return version + " with kernels for " + kernels() + " (" + file_ + ")";
  }

 private:
  std::string file_;
  std::string prefix_;
  std::string config_;
  std::array<int, 3> version_{};
  void* library_ = nullptr;  // never closed
};

/// An entry of libmxnet's procedure linkage table: the address of a function of another library.
/// The dynamic linker writes the address at the first call.
struct Slot {
  const char* name;
  void** place;

  void* get() const { return __atomic_load_n(place, __ATOMIC_ACQUIRE); }
  void set(void* function) const { __atomic_store_n(place, function, __ATOMIC_RELEASE); }
};

/// Finds the slots of all functions whose name begins with cblas_.
std::vector<Slot> find_slots(void* libmxnet) {
  std::vector<Slot> slots;
#ifdef __x86_64__
  link_map* map = nullptr;
  if (dlinfo(libmxnet, RTLD_DI_LINKMAP, &map) != 0) throw Error(dlerror());
  const char* names = nullptr;
  const ElfW(Sym)* symbols = nullptr;
  const ElfW(Rela)* relocations = nullptr;
  std::size_t number = 0;
  for (const ElfW(Dyn)* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
    const auto value = entry->d_un.d_val;
    if (entry->d_tag == DT_BIND_NOW || (entry->d_tag == DT_FLAGS && (value & DF_BIND_NOW)) ||
        (entry->d_tag == DT_FLAGS_1 && (value & DF_1_NOW))) {
      throw Error("the functions of this libmxnet are fixed (BIND_NOW)");
    }
    // The linker has already made these addresses absolute.
    if (entry->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(value);
    if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(value);
    if (entry->d_tag == DT_JMPREL) relocations = reinterpret_cast<const ElfW(Rela)*>(value);
    if (entry->d_tag == DT_PLTRELSZ) number = value / sizeof(ElfW(Rela));
  }
  for (std::size_t i = 0; i < number; ++i) {
    const auto info = relocations[i].r_info;
    const char* name = names + symbols[ELF64_R_SYM(info)].st_name;
    if (ELF64_R_TYPE(info) != R_X86_64_JUMP_SLOT || std::strncmp(name, "cblas_", 6) != 0) continue;
    slots.push_back({name, reinterpret_cast<void**>(map->l_addr + relocations[i].r_offset)});
  }
#else
  static_cast<void>(libmxnet);
#endif
  if (slots.empty()) throw Error("this libmxnet calls no BLAS in a way that is known here");
  return slots;
}

/// Returns the library whose function the slot holds, or will hold after the first call.
Blas library_of(const Slot& slot, void* libmxnet) {
  Dl_info here{};
  Dl_info there{};
  void* function = slot.get();
  if (!dladdr(slot.place, &here) || !dladdr(function, &there) ||
      here.dli_fbase == there.dli_fbase) {
    function = dlsym(RTLD_DEFAULT, slot.name);
    if (!function) function = dlsym(libmxnet, slot.name);
    if (!function || !dladdr(function, &there)) {
      throw Error(std::string("no library has MXNet's function ") + slot.name);
    }
  }
  return Blas(there.dli_fname);
}

/// The library that computes MXNet's matrix products.
struct Products {
  Blas library;
  std::vector<std::pair<Slot, void*>> slots;  // changed by gluon_syncbn, with the new functions
};

// Replaced as a whole and never destroyed, so that readers need no lock. A forked child might find
// a lock taken.
std::atomic<const Products*> the_products{new Products()};

void publish(const Products& products) { the_products = new Products(products); }

/// Writes the functions to their slots. Called more than once: the linker may have looked up the
/// old address before the first call, and write that address after it.
void fill(const std::vector<std::pair<Slot, void*>>& slots) {
  for (const auto& [slot, function] : slots) {
    if (slot.get() != function) slot.set(function);
  }
}

/// The number of OpenMP threads that MXNet gives each worker (mxnet/src/engine/openmp.cc).
int threads_of_workers() {
  if (!api().omp_get_max_threads || !api().omp_get_num_procs) return 1;
  return std::getenv("OMP_NUM_THREADS") ? api().omp_get_max_threads()
                                        : api().omp_get_num_procs() / 2;
}

}  // namespace

void use_openblas(const char* libmxnet, const char* openblas) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  void* const host = dlopen(libmxnet, RTLD_NOW | RTLD_NOLOAD);
  if (!host) throw Error(dlerror());
  const std::vector<Slot> slots = find_slots(host);
  const Blas present = library_of(slots.front(), host);
  publish({present, {}});
  if (!openblas) return;
  if (!present.is_openblas()) throw Error("MXNet computes in a library that is not OpenBLAS");
  const Blas other(openblas);
  if (!present.is_older_than(other)) throw Error("MXNet computes in an OpenBLAS that is not older");
  if (present.has_long_integers() != other.has_long_integers()) {
    throw Error("MXNet's OpenBLAS has integers of another size");
  }
  Products products{other, {}};
  for (const Slot& slot : slots) {
    void* function = other.function<void*>(slot.name);
    if (!function) throw Error(std::string("it has no function ") + slot.name);
    products.slots.emplace_back(slot, function);
  }
  fill(products.slots);
  publish(products);
}

std::string describe_blas() { return the_products.load()->library.describe(); }

void use_one_thread_per_product(const std::string& layer) {
  const Products& products = *the_products.load();
  fill(products.slots);
  if (products.library.has_openmp()) {
    if (threads_of_workers() <= 1) return;
    throw Error(layer + ": several CPU contexts, each with " +
                std::to_string(threads_of_workers()) + " threads, can wait forever for each " +
                "other in " + products.library.describe() + ". Set OMP_NUM_THREADS=1 before " +
                "MXNet is imported, or let its products compute in scipy-openblas32: " +
                "`python -m gluon_syncbn diagnose` says why they do not");
  }
  static std::atomic<bool> done{false};
  const auto set_threads = products.library.function<void (*)(int)>("openblas_set_num_threads");
  if (set_threads && !done.exchange(true)) set_threads(1);
}

}  // namespace gluon_syncbn::mxnet
