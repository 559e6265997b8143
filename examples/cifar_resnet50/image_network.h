// The common base of networks for images. Includes libtorch.
#ifndef CADRE_EXAMPLES_CIFAR_RESNET50_IMAGE_NETWORK_H_
#define CADRE_EXAMPLES_CIFAR_RESNET50_IMAGE_NETWORK_H_

#include <memory>

#include "torch/nn/module.h"
#include "torch/types.h"
#include "torch/utils.h"

namespace cadre {

struct ImageNetwork : torch::nn::Module {
  // Maps images [n, 3, height, width] to scores [n, classes].
  virtual torch::Tensor forward(torch::Tensor x) = 0;
};

// The argument of clone(): an optional device, whose type differs between versions of libtorch.
template <typename Method>
struct ArgumentOf;
template <typename Result, typename Class, typename Argument>
struct ArgumentOf<Result (Class::*)(Argument) const> {
  using type = Argument;
};
using OptionalDevice = ArgumentOf<decltype(&torch::nn::Module::clone)>::type;

// A network of which one process may have a copy on each of its devices. clone() constructs the
// copy from the network's member `options`.
template <typename Network>
struct CopiedImageNetwork : ImageNetwork {
  std::shared_ptr<torch::nn::Module> clone(OptionalDevice device) const override {
    const torch::NoGradGuard no_grad;
    auto copy = std::make_shared<Network>(static_cast<const Network&>(*this).options);
    if (device) copy->to(*device);
    auto parameters = copy->named_parameters(), buffers = copy->named_buffers();
    for (const auto& item : this->named_parameters()) parameters[item.key()].copy_(item.value());
    for (const auto& item : this->named_buffers()) buffers[item.key()].copy_(item.value());
    copy->train(this->is_training());
    return copy;
  }
};

}  // namespace cadre

#endif  // CADRE_EXAMPLES_CIFAR_RESNET50_IMAGE_NETWORK_H_
