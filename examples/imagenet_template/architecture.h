// The networks that --arch names. Includes libtorch.
#ifndef CADRE_EXAMPLES_IMAGENET_TEMPLATE_ARCHITECTURE_H_
#define CADRE_EXAMPLES_IMAGENET_TEMPLATE_ARCHITECTURE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../cifar_resnet50/image_network.h"
#include "cadre/result.h"

namespace cadre::imagenet {

struct ArchitectureOptions {
  // resnet18, resnet50, alexnet or vgg16.
  std::string name = "resnet18";
  int64_t classes = 1000;
  // The side, in pixels, of the square that the network sees.
  int side = 224;
  // For a smaller or larger residual network; empty and 0 mean the blocks and width of `name`.
  std::vector<int64_t> blocks;
  int64_t width = 0;
};

// Fails with INVALID_ARGUMENT if there is no such network, if it cannot process such small
// pictures, or if it has no such blocks.
Result<std::shared_ptr<ImageNetwork>> MakeNetwork(const ArchitectureOptions& options);

}  // namespace cadre::imagenet

#endif  // CADRE_EXAMPLES_IMAGENET_TEMPLATE_ARCHITECTURE_H_
