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
  // Of the pictures' part that the network sees.
  int side = 224;
  // Of a smaller or larger residual network; empty and 0: as its name says.
  std::vector<int64_t> blocks;
  int64_t width = 0;
};

// INVALID_ARGUMENT: there is no such network, it does not see such small pictures, or it has no
// such blocks.
Result<std::shared_ptr<ImageNetwork>> MakeNetwork(const ArchitectureOptions& options);

}  // namespace cadre::imagenet

#endif  // CADRE_EXAMPLES_IMAGENET_TEMPLATE_ARCHITECTURE_H_
