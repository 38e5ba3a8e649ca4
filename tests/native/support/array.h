#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "cuda/runtime.h"

namespace gluon_syncbn::tests {

/// An array in memory of a GPU that begins `offset` elements after a multiple of 256 bytes. Nothing
/// after its end may be touched. Without a stream the array lies in memory of the host.
template <class T>
class Array {
 public:
  Array(cuda::Stream* stream, const std::vector<T>& values, std::size_t offset = 0)
      : stream_(stream), on_host_(values), data_(on_host_.data()) {
    if (!stream) return;
    on_gpu_ = std::make_unique<cuda::Memory>(cuda::Memory::Place::kDevice, stream->ordinal(),
                                             (values.size() + offset + 1) * sizeof(T));
    data_ = static_cast<T*>(on_gpu_->data()) + offset;
    *this = values;
  }
  Array(const Array&) = delete;

  Array& operator=(const std::vector<T>& values) {
    copy(data_, values.data());
    return *this;
  }

  T* data() const { return data_; }
  std::vector<T> values() const {
    std::vector<T> values(on_host_);
    copy(values.data(), data_);
    return values;
  }

 private:
  void copy(T* to, const T* from) const {
    if (!stream_) return static_cast<void>(std::copy_n(from, on_host_.size(), to));
    stream_->copy(to, from, on_host_.size() * sizeof(T));
    stream_->synchronize();
  }

  cuda::Stream* const stream_;
  std::vector<T> on_host_;  // the first values, if the array lies on a GPU
  std::unique_ptr<cuda::Memory> on_gpu_;
  T* data_;
};

}  // namespace gluon_syncbn::tests
