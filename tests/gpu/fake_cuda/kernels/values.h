#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/name.h"

namespace fake_cuda {

/// How MXNet's kernels write: its OpReqType.
constexpr int kNullOp = 0;
constexpr int kAddTo = 3;

/// An array or a scalar of any type that MXNet has, as doubles, which hold them all exactly (but
/// integers beyond 2^53). Of MXNet's half2_t, which are two float16, an element is one of these.
class Values {
 public:
  /// An argument of a kernel: a pointer, or the scalar itself, which is copied.
  Values(const Name& type, const void* argument);

  /// Of one element.
  std::size_t bytes() const;

  double get(std::int64_t index) const;
  void set(std::int64_t index, double value) const;
  void write(std::int64_t index, int request, double value) const;

 private:
  struct Type;
  static const Type* find(const Name& type);

  const Type* type_;
  bool is_array_;
  union {
    char* array_;
    char scalar_[8];
  };
};

}  // namespace fake_cuda
