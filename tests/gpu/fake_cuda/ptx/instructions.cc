#include "ptx/instructions.h"

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "common/half.h"
#include "control.h"
#include "ptx/thread.h"

namespace fake_cuda::ptx {
namespace {

using F32 = float;
using F64 = double;
using U16 = std::uint16_t;
using U32 = std::uint32_t;
using U64 = std::uint64_t;
using S32 = std::int32_t;
using S64 = std::int64_t;

/// An instruction that writes a function of its other operands to the first.
template <auto kFunction>
struct Compute;
template <class R, class... A, R (*kFunction)(A...)>
struct Compute<kFunction> {
  static void run(const Instruction& instruction, Thread* thread) {
    apply(instruction, thread, std::index_sequence_for<A...>{});
  }
  template <std::size_t... kAt>
  static void apply(const Instruction& i, Thread* thread, std::index_sequence<kAt...>) {
    write<R>(thread, i.operands[0], kFunction(read<A>(*thread, i.operands[kAt + 1])...));
  }
};

template <class T>
T same(T a) {
  return a;
}
template <class To, class From>
To convert(From a) {
  return static_cast<To>(a);
}
template <class T>
T choose(T a, T b, bool first) {
  return first ? a : b;
}

// Arithmetic. That of whole numbers is modulo 2^n, so all of it is without signs.
template <class T>
T add(T a, T b) {
  return a + b;
}
template <class T>
T subtract(T a, T b) {
  return a - b;
}
template <class T>
T multiply(T a, T b) {
  return a * b;
}
template <class T>
T divide(T a, T b) {
  return a / b;
}
template <class T>
T reciprocal(T a) {
  return T{1} / a;
}
template <class T>
T negate(T a) {
  return -a;
}
template <class T>
T magnitude(T a) {
  return std::fabs(a);
}
template <class T>
T fused(T a, T b, T c) {
  return std::fma(a, b, c);
}
template <class T>
T least(T a, T b) {
  return std::min(a, b);
}
template <class T>
T greatest(T a, T b) {
  return std::max(a, b);
}
F64 root(F64 a) { return std::sqrt(a); }
template <class T>
T multiply_add(T a, T b, T c) {
  return a * b + c;
}
template <class T, class Wide>
Wide multiply_wide(T a, T b) {
  return Wide{a} * b;
}
U32 multiply_high(U32 a, U32 b) { return static_cast<U32>(U64{a} * b >> 32); }

/// Rounds as `mode` says. This file is compiled with -frounding-math.
template <class Function>
F32 rounded(int mode, const Function& function) {
  std::fesetround(mode);
  const F32 result = function();
  std::fesetround(FE_TONEAREST);
  return result;
}
F32 add_toward_zero(F32 a, F32 b) {
  return rounded(FE_TOWARDZERO, [=] { return a + b; });
}
F32 fused_down(F32 a, F32 b, F32 c) {
  return rounded(FE_DOWNWARD, [=] { return std::fma(a, b, c); });
}
F32 nearest_whole(F32 a) { return std::nearbyint(a); }
F32 saturated(F32 a) { return a > 0 ? std::min(a, 1.0f) : 0.0f; }
F32 flushed(F32 a) {
  return std::fabs(a) < std::numeric_limits<F32>::min() ? std::copysign(0.0f, a) : a;
}
F32 exp2(F32 a) { return static_cast<F32>(std::exp2(F64{a})); }
F32 exp2_flushed(F32 a) { return flushed(exp2(flushed(a))); }

/// Of the upper halves alone, as rcp.approx.ftz.f64 is specified.
F64 approximate_reciprocal(F64 a) {
  const auto upper_half = [](F64 value) {
    U64 bits;
    std::memcpy(&bits, &value, sizeof bits);
    bits &= ~0xffffffffull;
    std::memcpy(&value, &bits, sizeof bits);
    return value;
  };
  return upper_half(1 / upper_half(a));
}

F32 from_half(U16 a) { return gluon_syncbn::to_float({a}); }
U16 to_half(F32 a) { return gluon_syncbn::to_half(a).bits; }

// Bits.
template <class T>
T both(T a, T b) {
  return a & b;
}
template <class T>
T either(T a, T b) {
  return a | b;
}
template <class T>
T exclusive(T a, T b) {
  return a ^ b;
}
template <class T>
T shift_left(T a, U32 bits) {
  return bits < 8 * sizeof(T) ? a << bits : 0;
}
template <class T>
T shift_right(T a, U32 bits) {
  return a >> std::min<U32>(bits, 8 * sizeof(T) - 1) >> (bits < 8 * sizeof(T) ? 0 : 1);
}
U32 extract(U32 from, U32 at, U32 length) {
  return shift_right<U32>(from, at) & (shift_left<U32>(1, length) - 1);
}
U32 insert(U32 field, U32 into, U32 at, U32 length) {
  const U32 mask = shift_left<U32>(shift_left<U32>(1, length) - 1, at);
  return (into & ~mask) | (shift_left<U32>(field, at) & mask);
}
U32 permute(U32 low, U32 high, U32 selection) {
  const U64 source = U64{high} << 32 | low;
  U32 result = 0;
  for (U32 i = 0; i < 4; ++i) {
    const U32 choice = selection >> 4 * i & 0xf;
    U32 byte = static_cast<U32>(source >> 8 * (choice & 7) & 0xff);
    if (choice & 8) byte = byte & 0x80 ? 0xff : 0;
    result |= byte << 8 * i;
  }
  return result;
}

// Comparisons. Those that end in u hold if one number is NaN, the others do not.
template <class T>
bool equal(T a, T b) {
  return a == b;
}
template <class T>
bool unequal(T a, T b) {
  return a < b || a > b;
}
template <class T>
bool less(T a, T b) {
  return a < b;
}
template <class T>
bool at_most(T a, T b) {
  return a <= b;
}
template <class T>
bool greater(T a, T b) {
  return a > b;
}
template <class T>
bool at_least(T a, T b) {
  return a >= b;
}
template <class T>
bool unordered(T a, T b) {
  return a != a || b != b;
}
template <class T, bool (*kOpposite)(T, T)>
bool unless(T a, T b) {
  return !kOpposite(a, b);
}

// What is not a function of the operands.
void branch(const Instruction& instruction, Thread* thread) { thread->next = instruction.target; }
void wait(const Instruction&, Thread* thread) {
  if (!settings().ignore_barriers) thread->state = Thread::State::kWaits;
}
void end(const Instruction&, Thread* thread) { thread->state = Thread::State::kEnded; }

/// The parts of a vector, from one register.
template <class Part, class Whole>
void split(const Instruction& instruction, Thread* thread) {
  const Whole whole = read<Whole>(*thread, instruction.operands[2]);
  write<Part>(thread, instruction.operands[0], static_cast<Part>(whole));
  write<Part>(thread, instruction.operands[1], static_cast<Part>(whole >> 8 * sizeof(Part)));
}
/// One register from the parts of a vector, or from another register.
template <class Part, class Whole>
void join(const Instruction& instruction, Thread* thread) {
  if (instruction.operands.size() == 2) return Compute<same<Whole>>::run(instruction, thread);
  const Whole low = read<Part>(*thread, instruction.operands[1]);
  const Whole high = read<Part>(*thread, instruction.operands[2]);
  write<Whole>(thread, instruction.operands[0], low | high << 8 * sizeof(Part));
}

template <class T, Space kSpace, std::size_t kElements>
void load(const Instruction& instruction, Thread* thread) {
  const char* const from =
      access(instruction, thread, kSpace, kElements, kElements * sizeof(T), Access::kRead);
  for (std::size_t i = 0; i < kElements; ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    write<T>(thread, instruction.operands[i], value);
  }
}
template <class T, Space kSpace, std::size_t kElements>
void store(const Instruction& instruction, Thread* thread) {
  char* const to = access(instruction, thread, kSpace, 0, kElements * sizeof(T), Access::kWrite);
  for (std::size_t i = 0; i < kElements; ++i) {
    const T value = read<T>(*thread, instruction.operands[i + 1]);
    std::memcpy(to + i * sizeof(T), &value, sizeof(T));
  }
}
/// Blocks of a kernel run one after another.
template <bool kReturns>
void atomic_minimum(const Instruction& instruction, Thread* thread) {
  char* const at =
      access(instruction, thread, Space::kGlobal, kReturns, sizeof(U32), Access::kAtomic);
  U32 old;
  std::memcpy(&old, at, sizeof old);
  const U32 result = std::min(old, read<U32>(*thread, instruction.operands[kReturns + 1]));
  std::memcpy(at, &result, sizeof result);
  if (kReturns) write<U32>(thread, instruction.operands[0], old);
}

using Table = std::map<std::string, Run>;

template <class T>
void add_comparisons(Table* table, const std::string& type) {
  const std::pair<const char*, Run> rows[] = {
      {"eq", Compute<equal<T>>::run},
      {"ne", Compute<unequal<T>>::run},
      {"lt", Compute<less<T>>::run},
      {"le", Compute<at_most<T>>::run},
      {"gt", Compute<greater<T>>::run},
      {"ge", Compute<at_least<T>>::run},
      {"nan", Compute<unordered<T>>::run},
      {"equ", Compute<unless<T, unequal<T>>>::run},
      {"neu", Compute<unless<T, equal<T>>>::run},
      {"ltu", Compute<unless<T, at_least<T>>>::run},
      {"leu", Compute<unless<T, greater<T>>>::run},
      {"gtu", Compute<unless<T, at_most<T>>>::run},
      {"geu", Compute<unless<T, less<T>>>::run},
  };
  for (const auto& [name, run] : rows) (*table)["setp." + (name + ("." + type))] = run;
}

template <class T, std::size_t kElements>
void add_accesses(Table* table, const std::string& type) {
  const std::string vector = kElements == 1 ? "." : ".v" + std::to_string(kElements) + ".";
  const std::string end = vector + type;
  const std::string loaded = end + (kElements == 1 ? "" : " {}");
  (*table)["ld.param" + loaded] = load<T, Space::kParameters, kElements>;
  (*table)["ld.shared" + loaded] = load<T, Space::kShared, kElements>;
  (*table)["st.shared" + end] = store<T, Space::kShared, kElements>;
  (*table)["ld.global" + loaded] = load<T, Space::kGlobal, kElements>;
  (*table)["st.global" + end] = store<T, Space::kGlobal, kElements>;
}
template <class T>
void add_all_accesses(Table* table, const std::string& type) {
  add_accesses<T, 1>(table, type);
  add_accesses<T, 2>(table, type);
  add_accesses<T, 4>(table, type);
}

Table all_instructions() {
  Table table{
      {"bra", branch},
      {"bra.uni", branch},
      {"ret", end},
      {"bar.sync", wait},
      {"cvta.to.global.u64", Compute<same<U64>>::run},
      {"atom.global.min.u32", atomic_minimum<true>},
      {"red.global.min.u32", atomic_minimum<false>},
      {"mov.pred", Compute<same<bool>>::run},
      {"mov.u32", Compute<same<U32>>::run},
      {"mov.u64", Compute<same<U64>>::run},
      {"mov.f32", Compute<same<F32>>::run},
      {"mov.f64", Compute<same<F64>>::run},
      {"mov.b32", join<U16, U32>},
      {"mov.b64", join<U32, U64>},
      {"mov.b32 {}", split<U16, U32>},
      {"mov.b64 {}", split<U32, U64>},
      {"selp.b32", Compute<choose<U32>>::run},
      {"selp.b64", Compute<choose<U64>>::run},
      {"selp.f32", Compute<choose<F32>>::run},
      {"selp.f64", Compute<choose<F64>>::run},
      {"add.s32", Compute<add<U32>>::run},
      {"add.s64", Compute<add<U64>>::run},
      {"add.f32", Compute<add<F32>>::run},
      {"add.f64", Compute<add<F64>>::run},
      {"add.rn.f64", Compute<add<F64>>::run},
      {"add.rz.f32", Compute<add_toward_zero>::run},
      {"sub.s32", Compute<subtract<U32>>::run},
      {"sub.s64", Compute<subtract<U64>>::run},
      {"sub.f32", Compute<subtract<F32>>::run},
      {"sub.f64", Compute<subtract<F64>>::run},
      {"mul.f32", Compute<multiply<F32>>::run},
      {"mul.f64", Compute<multiply<F64>>::run},
      {"mul.lo.s32", Compute<multiply<U32>>::run},
      {"mul.lo.s64", Compute<multiply<U64>>::run},
      {"mul.hi.u32", Compute<multiply_high>::run},
      {"mul.wide.u32", Compute<multiply_wide<U32, U64>>::run},
      {"mul.wide.s32", Compute<multiply_wide<S32, S64>>::run},
      {"mad.lo.s32", Compute<multiply_add<U32>>::run},
      {"mad.lo.s64", Compute<multiply_add<U64>>::run},
      {"fma.rn.f32", Compute<fused<F32>>::run},
      {"fma.rn.f64", Compute<fused<F64>>::run},
      {"fma.rm.f32", Compute<fused_down>::run},
      {"div.rn.f32", Compute<divide<F32>>::run},
      {"div.rn.f64", Compute<divide<F64>>::run},
      {"rcp.rn.f32", Compute<reciprocal<F32>>::run},
      {"rcp.rn.f64", Compute<reciprocal<F64>>::run},
      {"rcp.approx.ftz.f64", Compute<approximate_reciprocal>::run},
      {"sqrt.rn.f64", Compute<root>::run},
      {"ex2.approx.f32", Compute<exp2>::run},
      {"ex2.approx.ftz.f32", Compute<exp2_flushed>::run},
      {"neg.f32", Compute<negate<F32>>::run},
      {"neg.f64", Compute<negate<F64>>::run},
      {"abs.f32", Compute<magnitude<F32>>::run},
      {"abs.f64", Compute<magnitude<F64>>::run},
      {"min.s64", Compute<least<S64>>::run},
      {"max.s64", Compute<greatest<S64>>::run},
      {"min.u32", Compute<least<U32>>::run},
      {"max.u32", Compute<greatest<U32>>::run},
      {"and.pred", Compute<both<bool>>::run},
      {"or.pred", Compute<either<bool>>::run},
      {"and.b16", Compute<both<U16>>::run},
      {"and.b32", Compute<both<U32>>::run},
      {"and.b64", Compute<both<U64>>::run},
      {"or.b32", Compute<either<U32>>::run},
      {"xor.b32", Compute<exclusive<U32>>::run},
      {"shl.b32", Compute<shift_left<U32>>::run},
      {"shl.b64", Compute<shift_left<U64>>::run},
      {"shr.u32", Compute<shift_right<U32>>::run},
      {"shr.u64", Compute<shift_right<U64>>::run},
      {"shr.s32", Compute<shift_right<S32>>::run},
      {"bfe.u32", Compute<extract>::run},
      {"bfi.b32", Compute<insert>::run},
      {"prmt.b32", Compute<permute>::run},
      {"cvt.u64.u32", Compute<convert<U64, U32>>::run},
      {"cvt.u32.u64", Compute<convert<U32, U64>>::run},
      {"cvt.u32.u16", Compute<convert<U32, U16>>::run},
      {"cvt.u16.u32", Compute<convert<U16, U32>>::run},
      {"cvt.f32.f16", Compute<from_half>::run},
      {"cvt.rn.f16.f32", Compute<to_half>::run},
      {"cvt.f64.f32", Compute<convert<F64, F32>>::run},
      {"cvt.rn.f32.f64", Compute<convert<F32, F64>>::run},
      {"cvt.rn.f32.s32", Compute<convert<F32, S32>>::run},
      {"cvt.rn.f32.u32", Compute<convert<F32, U32>>::run},
      {"cvt.rn.f64.u32", Compute<convert<F64, U32>>::run},
      {"cvt.rn.f64.s64", Compute<convert<F64, S64>>::run},
      {"cvt.rni.f32.f32", Compute<nearest_whole>::run},
      {"cvt.sat.f32.f32", Compute<saturated>::run},
  };
  add_comparisons<std::int16_t>(&table, "s16");
  add_comparisons<U32>(&table, "u32");
  add_comparisons<S32>(&table, "s32");
  add_comparisons<S64>(&table, "s64");
  add_comparisons<U64>(&table, "u64");
  add_comparisons<F32>(&table, "f32");
  add_comparisons<F64>(&table, "f64");
  add_all_accesses<std::uint8_t>(&table, "u8");
  add_all_accesses<U16>(&table, "u16");
  add_all_accesses<U32>(&table, "u32");
  add_all_accesses<U64>(&table, "u64");
  add_all_accesses<F32>(&table, "f32");
  add_all_accesses<F64>(&table, "f64");
  return table;
}

}  // namespace

Run find_instruction(const std::string& name) {
  static const Table& table = *new Table(all_instructions());
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace fake_cuda::ptx
