#include "mxnet/repairs/vtable.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "common/error.h"

namespace gluon_syncbn::mxnet {
namespace {

// A virtual table begins with an offset and the type, and the functions come after that.
constexpr std::size_t kWordsBefore = 2;

std::string name_at(const void* address) {
  Dl_info info{};
  return dladdr(address, &info) && info.dli_sname ? info.dli_sname : "no known function";
}

/// Makes memory writable as long as this object lives. The dynamic linker makes virtual tables
/// read-only after it has filled them (RELRO).
class Writable {
 public:
  Writable(void* begin, std::size_t size) {
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    begin_ = reinterpret_cast<std::uintptr_t>(begin) / page * page;
    end_ = (reinterpret_cast<std::uintptr_t>(begin) + size + page - 1) / page * page;
    was_read_only_ = dl_iterate_phdr(&is_read_only, this) != 0;
    if (was_read_only_ && !protect(PROT_READ | PROT_WRITE)) {
      throw Error(std::string("its memory cannot be made writable: ") + std::strerror(errno));
    }
  }
  ~Writable() {
    if (was_read_only_) protect(PROT_READ);
  }
  Writable(const Writable&) = delete;
  Writable& operator=(const Writable&) = delete;

 private:
  static int is_read_only(dl_phdr_info* info, std::size_t, void* self) {
    const auto& pages = *static_cast<const Writable*>(self);
    // The last page stays writable if it also holds other data. The first page never does.
    return std::any_of(info->dlpi_phdr, info->dlpi_phdr + info->dlpi_phnum, [&](const auto& part) {
      const auto address = info->dlpi_addr + part.p_vaddr;
      return part.p_type == PT_GNU_RELRO && address < pages.end_ &&
             pages.end_ <= address + part.p_memsz;
    });
  }
  bool protect(int protection) const {
    return mprotect(reinterpret_cast<void*>(begin_), end_ - begin_, protection) == 0;
  }

  std::uintptr_t begin_;
  std::uintptr_t end_;
  bool was_read_only_;
};

}  // namespace

void* find_symbol(void* library, const char* name) {
  void* address = dlsym(library, name);
  if (!address) throw Error(std::string("it has no symbol ") + name);
  return address;
}

void replace_virtual_functions(void* library, const char* vtable,
                               const std::vector<VirtualFunction>& functions) {
  void** const entries = static_cast<void**>(find_symbol(library, vtable)) + kWordsBefore;
  std::size_t replaced = 0;
  for (std::size_t i = 0; i < functions.size(); ++i) {
    if (entries[i] == find_symbol(library, functions[i].name)) continue;
    const std::string found = name_at(entries[i]);
    if (found != functions[i].replacement) {
      throw Error(std::string(functions[i].name) + " is expected in " + vtable + ", which has " +
                  found);
    }
    ++replaced;
  }
  if (replaced > 0) return;
  const Writable writable(entries, functions.size() * sizeof(void*));
  for (std::size_t i = 0; i < functions.size(); ++i) {
    // Atomic, because other threads may be calling MXNet.
    __atomic_store_n(&entries[i], functions[i].function, __ATOMIC_RELEASE);
  }
}

}  // namespace gluon_syncbn::mxnet
