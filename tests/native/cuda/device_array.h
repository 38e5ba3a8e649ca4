#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "cuda/runtime.h"

namespace gluon_syncbn::tests {

/// An array in memory of a GPU that begins `offset` elements after a multiple of 256 bytes. Nothing
/// after its end may be touched.
template <class T>
class DeviceArray {
 public:
  DeviceArray(cuda::Stream* stream, const std::vector<T>& values, std::size_t offset = 0)
      : stream_(stream),
        size_(values.size()),
        offset_(offset),
        memory_(cuda::Memory::Place::kDevice, stream->ordinal(),
                (values.size() + offset + 1) * sizeof(T)) {
    stream->copy(data(), values.data(), size_ * sizeof(T));
    stream_->synchronize();
  }

  T* data() const { return static_cast<T*>(memory_.data()) + offset_; }

  std::vector<T> download() const {
    std::vector<T> values(size_);
    stream_->copy(values.data(), data(), size_ * sizeof(T));
    stream_->synchronize();
    return values;
  }

 private:
  cuda::Stream* stream_;
  std::size_t size_;
  std::size_t offset_;
  cuda::Memory memory_;
};

}  // namespace gluon_syncbn::tests
