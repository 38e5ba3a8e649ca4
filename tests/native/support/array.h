#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "cuda/runtime.h"

namespace gluon_syncbn::tests {

/// An array that begins `offset` elements after where memory is aligned. It lies in memory of the
/// host, or of a GPU if there is a stream. Nothing after its end may be touched.
template <class T>
class Array {
 public:
  Array(cuda::Stream* stream, const std::vector<T>& values, std::size_t offset = 0)
      : stream_(stream), size_(values.size()) {
    if (stream) {
      on_gpu_ = std::make_unique<cuda::Memory>(cuda::Memory::Place::kDevice, stream->ordinal(),
                                               (size_ + offset + 1) * sizeof(T));
      data_ = static_cast<T*>(on_gpu_->data()) + offset;
    } else {
      on_host_.resize(size_ + offset + kPast);
      data_ = on_host_.data() + offset;
    }
    *this = values;
  }
  Array(const Array&) = delete;

  Array& operator=(const std::vector<T>& values) {
    copy(data_, values.data());
    return *this;
  }

  T* data() const { return data_; }
  std::vector<T> values() const {
    std::vector<T> values(size_);
    copy(values.data(), data_);
    const T past{};
    for (std::size_t i = 0; !stream_ && i < kPast; ++i) {
      CHECK(std::memcmp(data_ + size_ + i, &past, sizeof(T)) == 0);
    }
    return values;
  }

 private:
  /// Zeros after the end. The address sanitizer knows itself where the end is.
#ifdef __SANITIZE_ADDRESS__
  static constexpr std::size_t kPast = 0;
#else
  static constexpr std::size_t kPast = 1;
#endif

  void copy(T* to, const T* from) const {
    if (!stream_) return static_cast<void>(std::copy_n(from, size_, to));
    stream_->copy(to, from, size_ * sizeof(T));
    stream_->synchronize();
  }

  cuda::Stream* const stream_;
  const std::size_t size_;
  std::vector<T> on_host_;
  std::unique_ptr<cuda::Memory> on_gpu_;
  T* data_;
};

}  // namespace gluon_syncbn::tests
