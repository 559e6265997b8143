#include "cadre/torch/finite_check.h"

#include "torch/utils.h"

namespace cadre::nn {

FiniteCheck::FiniteCheck(const DeviceStream* stream, const torch::Tensor& like, bool sticky)
    : stream_(*stream),
      sticky_(sticky),
      found_(torch::zeros({}, like.options().dtype(torch::kInt64).requires_grad(false))),
      host_(EmptyPinned(like.device(), {1}, torch::kInt64)) {
  host_.zero_();
}

void FiniteCheck::Look(const torch::Tensor& flat) {
  const DeviceStream::Scope on(stream_);
  // A NaN is both the greatest and the least; a NaN or an infinity minus itself is not zero.
  const auto [greatest, at_greatest] = flat.max(0);
  const auto [least, at_least] = flat.min(0);
  const torch::Tensor value = torch::stack({greatest, least});
  const torch::Tensor at = torch::stack({at_greatest, at_least});
  const torch::Tensor found = ((at + 1) * (value - value).ne(0)).max();
  found_.copy_(sticky_ ? torch::max(found, found_) : found);
  host_.copy_(found_.view({1}), /*non_blocking=*/true);
  looked_ = stream_.Here();
}

std::optional<int64_t> FiniteCheck::found() const {
  // The device may be writing it.
  const int64_t found = __atomic_load_n(host_.data_ptr<int64_t>(), __ATOMIC_RELAXED);
  if (found == 0) return std::nullopt;
  return found - 1;
}

}  // namespace cadre::nn
