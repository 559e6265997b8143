// The loss and the accuracy of a network's scores. Includes libtorch.
#ifndef CADRE_EXAMPLES_IMAGENET_TEMPLATE_SCORE_H_
#define CADRE_EXAMPLES_IMAGENET_TEMPLATE_SCORE_H_

#include <algorithm>
#include <cstdint>
#include <tuple>

#include "torch/types.h"

namespace cadre::imagenet {

// The members are sums over pictures.
struct Score {
  double loss = 0, top1 = 0, top5 = 0, pictures = 0;

  static Score Of(const torch::Tensor& mean_loss, const torch::Tensor& scores,
                  const torch::Tensor& labels) {
    const int64_t five = std::min<int64_t>(5, scores.size(1));
    const torch::Tensor best = std::get<1>(scores.topk(five, /*dim=*/1));
    const torch::Tensor hits = best.eq(labels.unsqueeze(1));
    const auto count = static_cast<double>(labels.size(0));
    return {mean_loss.item<double>() * count, hits.select(1, 0).sum().item<double>(),
            hits.sum().item<double>(), count};
  }
  void Add(const Score& other) {
    loss += other.loss;
    top1 += other.top1;
    top5 += other.top5;
    pictures += other.pictures;
  }
  double Loss() const { return loss / pictures; }
  double Top1() const { return 100 * top1 / pictures; }
  double Top5() const { return 100 * top5 / pictures; }
};

}  // namespace cadre::imagenet

#endif  // CADRE_EXAMPLES_IMAGENET_TEMPLATE_SCORE_H_
