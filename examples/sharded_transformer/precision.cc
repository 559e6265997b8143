#include "precision.h"

#include <optional>

#include "../exceptions/exceptions.h"
#include "cadre/torch/autocast.h"
#include "gpt.h"
#include "torch/version.h"

namespace cadre::transformer {
namespace {

std::string NameOf(torch::ScalarType type) {
  return type == torch::kFloat16 ? "float16" : type == torch::kBFloat16 ? "bfloat16" : "float32";
}

}  // namespace

Result<torch::ScalarType> TypeNamed(const std::string& precision) {
  for (const auto type : {torch::kFloat32, torch::kBFloat16, torch::kFloat16}) {
    if (precision == NameOf(type)) return type;
  }
  return InvalidArgumentError("--precision " + precision +
                              ": expected float32, bfloat16 or float16");
}

torch::Tensor ForwardIn(torch::ScalarType type, const torch::Device& device,
                        const std::function<torch::Tensor()>& forward) {
  std::optional<nn::Autocast> in_16_bits;
  if (type != torch::kFloat32) in_16_bits.emplace(device.type(), type);
  return forward().to(torch::kFloat32);
}

Status CheckTrains(const torch::Device& device, torch::ScalarType type) {
  if (type == torch::kFloat32) return OkStatus();
  const Status trained = WithoutExceptions([&] {
    Gpt net({/*layers=*/1, /*width=*/8, /*heads=*/2, /*context=*/1, /*vocabulary=*/1});
    net.to(device);
    const torch::Tensor ids =
        torch::zeros({1, 1}, torch::TensorOptions(device).dtype(torch::kLong));
    ForwardIn(type, device, [&] { return net.forward(ids); }).sum().backward();
    return OkStatus();
  });
  if (trained.ok()) return OkStatus();
  return FailedPreconditionError("--precision " + NameOf(type) +
                                 ": libtorch " TORCH_VERSION " cannot train the model in it on " +
                                 device.str() + " (" + trained.message() +
                                 "); take a newer libtorch, another precision, or a GPU");
}

}  // namespace cadre::transformer
