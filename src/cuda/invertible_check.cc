#include "cuda/invertible_check.h"

#include <algorithm>
#include <cstdint>

#include "common/dtype.h"
#include "cuda/kernels/channels.h"
#include "cuda/runtime.h"

namespace gluon_syncbn::cuda {

InvertibleCheck::InvertibleCheck(Gpu* gpu, const Backend::Backward& pass)
    : invertible_(Invertible::of(pass.data.dtype, pass.activation)) {
  dispatch(pass.data.dtype, [&](auto types) {
    using P = typename decltype(types)::Parameter;
    FindNotInvertible<P> body{invertible_, static_cast<const P*>(pass.gamma),
                              static_cast<const P*>(pass.beta), pass.data.layout.channels, nullptr};
    blocks_ = static_cast<std::size_t>(body.blocks());
    found_ = gpu->host_memory(blocks_ * (sizeof(NotInvertible) / sizeof(double)));
    body.found = static_cast<NotInvertible*>(found_->data());
    std::fill_n(body.found, blocks_, NotInvertible{});
    launch(body, body.blocks(), gpu->stream());
  });
}

std::string InvertibleCheck::error() const {
  const auto* begin = static_cast<const NotInvertible*>(found_->data());
  const auto* end = begin + blocks_;
  const auto* first =
      std::find_if(begin, end, [](const NotInvertible& found) { return found.channel >= 0; });
  if (first == end) return "";
  return invertible_.error(static_cast<std::int64_t>(first->channel), first->gamma, first->beta);
}

}  // namespace gluon_syncbn::cuda
