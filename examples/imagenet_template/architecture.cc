#include "architecture.h"

#include "../cifar_resnet50/resnet.h"
#include "alexnet.h"
#include "vgg.h"

namespace cadre::imagenet {
namespace {

template <typename Network>
Result<std::shared_ptr<ImageNetwork>> MakePlain(const ArchitectureOptions& options) {
  if (!options.blocks.empty() || options.width != 0) {
    return InvalidArgumentError(
        "--arch " + options.name +
        " has no blocks; --blocks and --width are of resnet18 and resnet50");
  }
  if (options.side < Network::kLeastSide) {
    return InvalidArgumentError("--side " + std::to_string(options.side) + " is too small for " +
                                options.name + "; expected at least " +
                                std::to_string(Network::kLeastSide));
  }
  return std::shared_ptr<ImageNetwork>(std::make_shared<Network>(options.classes));
}

}  // namespace

Result<std::shared_ptr<ImageNetwork>> MakeNetwork(const ArchitectureOptions& options) {
  if (options.name == "alexnet") return MakePlain<AlexNet>(options);
  if (options.name == "vgg16") return MakePlain<Vgg16>(options);
  ResNetOptions residual;
  residual.classes = options.classes;
  if (options.name == "resnet18") {
    residual.bottleneck = false;
    residual.blocks = {2, 2, 2, 2};
  } else if (options.name != "resnet50") {
    return InvalidArgumentError("--arch " + options.name +
                                ": expected resnet18, resnet50, alexnet or vgg16");
  }
  if (!options.blocks.empty()) residual.blocks = options.blocks;
  if (options.width != 0) residual.width = options.width;
  return std::shared_ptr<ImageNetwork>(std::make_shared<ResNet>(residual));
}

}  // namespace cadre::imagenet
