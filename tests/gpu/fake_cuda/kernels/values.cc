#include "kernels/values.h"

#include <cstring>
#include <map>
#include <string>

#include "common/half.h"
#include "control.h"

namespace fake_cuda {

struct Values::Type {
  std::size_t bytes;
  double (*load)(const char*);
  void (*store)(char*, double);
};

namespace {

template <class T>
double load(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return static_cast<double>(value);
}
template <class T>
void store(char* to, double given) {
  const T value = static_cast<T>(given);
  std::memcpy(to, &value, sizeof value);
}
double load_half(const char* from) {
  gluon_syncbn::Half value;
  std::memcpy(&value, from, sizeof value);
  return gluon_syncbn::to_float(value);
}
void store_half(char* to, double given) {
  const gluon_syncbn::Half value = gluon_syncbn::to_half(static_cast<float>(given));
  std::memcpy(to, &value, sizeof value);
}

}  // namespace

const Values::Type* Values::find(const Name& type) {
#define FAKE_CUDA_TYPE(T)                \
  {                                      \
    #T, { sizeof(T), load<T>, store<T> } \
  }
  static const std::map<std::string, Type> types = {
      FAKE_CUDA_TYPE(float),
      FAKE_CUDA_TYPE(double),
      FAKE_CUDA_TYPE(int),
      FAKE_CUDA_TYPE(long),
      FAKE_CUDA_TYPE(signed char),
      FAKE_CUDA_TYPE(unsigned char),
      FAKE_CUDA_TYPE(bool),
      {"half_t", {2, load_half, store_half}},
      {"half2_t", {2, load_half, store_half}},
  };
#undef FAKE_CUDA_TYPE
  const auto found = types.find(type.element());
  return found == types.end() ? nullptr : &found->second;
}

std::size_t Values::bytes() const { return type_->bytes; }

Values::Values(const Name& type, const void* argument)
    : type_(find(type)), is_array_(type.is_pointer()) {
  if (!type_) die("MXNet's type '" + type.head + "' is not imitated");
  std::memcpy(scalar_, argument, is_array_ ? sizeof array_ : type_->bytes);
}

double Values::get(std::int64_t index) const {
  return type_->load(is_array_ ? array_ + index * static_cast<std::int64_t>(type_->bytes)
                               : scalar_);
}
void Values::set(std::int64_t index, double value) const {
  type_->store(array_ + index * static_cast<std::int64_t>(type_->bytes), value);
}
void Values::write(std::int64_t index, int request, double value) const {
  if (request == kNullOp) return;
  set(index, request == kAddTo ? get(index) + value : value);
}

}  // namespace fake_cuda
