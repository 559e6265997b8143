#include "cadre/torch/gradient_norm.h"

#include <cmath>
#include <map>
#include <string>

#include "cadre/status_macros.h"
#include "cadre/torch/tensors.h"
#include "cadre/wait_or_abort.h"
#include "torch/utils.h"

namespace cadre::nn {
namespace {

// As in torch::nn::utils::clip_grad_norm_.
constexpr double kLeastNorm = 1e-6;

// NaN, which compares with nothing, is more than everything.
double LargerOf(double a, double b) { return b <= a ? a : b; }

}  // namespace

Status CheckNorm(double max_norm, double norm_type) {
  if (max_norm >= 0 && norm_type > 0) return OkStatus();
  return InvalidArgumentError("ClipGradNorm(" + std::to_string(max_norm) + ", " +
                              std::to_string(norm_type) +
                              "): the norm must be at least 0, and its type more than 0");
}

Result<double> NormOverRanks(Communicator& communicator, const std::vector<torch::Tensor>& mine,
                             double norm_type, std::chrono::nanoseconds timeout) {
  const bool largest = std::isinf(norm_type);
  std::map<std::string, std::vector<torch::Tensor>> norms;
  for (const torch::Tensor& grad : mine) {
    if (grad.numel() == 0) continue;
    const torch::Tensor norm =
        largest ? grad.abs().max() : torch::norm(grad, norm_type, ReducedType(grad.scalar_type()));
    norms[grad.device().str()].push_back(norm.to(torch::kFloat64));
  }
  double here = 0;
  for (const auto& [device, list] : norms) {
    const torch::Tensor all = torch::stack(list).cpu();
    const double there = (largest ? all.max() : all.pow(norm_type).sum()).item<double>();
    here = largest ? LargerOf(here, there) : here + there;
  }
  std::vector<double> everyones(static_cast<size_t>(communicator.size()));
  CADRE_RETURN_IF_ERROR(
      WaitOrAbort(communicator,
                  communicator.AllGather({&here, 1, DataType::kFloat64},
                                         {everyones.data(), everyones.size(), DataType::kFloat64}),
                  timeout));
  double total = 0;
  for (const double one : everyones) total = largest ? LargerOf(total, one) : total + one;
  return largest ? total : std::pow(total, 1 / norm_type);
}

void ClipToNorm(const std::vector<torch::Tensor>& gradients, double total, double max_norm) {
  const double factor = max_norm / (total + kLeastNorm);
  if (factor >= 1) return;
  for (const torch::Tensor& grad : gradients) torch::Tensor(grad).mul_(factor);
}

}  // namespace cadre::nn
