#include "cpu/simd/isa.h"

#include <atomic>
#include <cstdlib>
#include <string>

#include "common/error.h"

#ifdef GLUON_SYNCBN_X86
#include <cpuid.h>
#endif

namespace gluon_syncbn::cpu {
namespace {

constexpr Isa kAll[] = {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512};

#ifdef GLUON_SYNCBN_X86
/// Asks the processor itself, because __builtin_cpu_supports of older compilers has no "f16c".
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

Isa isa_named(const std::string& name) {
  for (const Isa isa : kAll) {
    if (name == isa_name(isa)) return isa;
  }
  throw Error("environment variable GLUON_SYNCBN_ISA='" + name +
              "' should be baseline, avx2 or avx512");
}

Isa best_isa() {
  const char* name = std::getenv("GLUON_SYNCBN_ISA");
  const Isa limit = name && *name ? isa_named(name) : Isa::kAvx512;
  Isa best = Isa::kBaseline;
  for (const Isa isa : kAll) {
    if (isa <= limit && has_isa(isa)) best = isa;
  }
  return best;
}

std::atomic<Isa>& chosen() {
  static std::atomic<Isa> isa{best_isa()};
  return isa;
}

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    default:
      return "baseline";
  }
}

bool has_isa(Isa isa) {
  if (isa == Isa::kBaseline) return true;
#ifdef GLUON_SYNCBN_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  if (isa == Isa::kAvx2) return avx2;
  return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
#else
  return false;
#endif
}

Isa isa() { return chosen().load(std::memory_order_relaxed); }

void use_isa(Isa isa) {
  if (has_isa(isa)) chosen().store(isa, std::memory_order_relaxed);
}

namespace {

const IsaKernels& all_in_use() {
#ifdef GLUON_SYNCBN_X86
  switch (isa()) {
    case Isa::kAvx512:
      return avx512::kernels();
    case Isa::kAvx2:
      return avx2::kernels();
    default:
      break;
  }
#endif
  return baseline::kernels();
}

}  // namespace

#define GLUON_SYNCBN_KERNELS(T)           \
  template <>                             \
  const Kernels<T>& kernels_in_use<T>() { \
    return all_in_use().of_##T;           \
  }
GLUON_SYNCBN_FOR_EACH_DTYPE(GLUON_SYNCBN_KERNELS)
#undef GLUON_SYNCBN_KERNELS

}  // namespace gluon_syncbn::cpu
