// Data-parallel training of a ResNet on pictures in the layout of ImageNet.
#ifndef CADRE_EXAMPLES_IMAGENET_TEMPLATE_TRAIN_H_
#define CADRE_EXAMPLES_IMAGENET_TEMPLATE_TRAIN_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "cadre/connect.h"
#include "cadre/status.h"

namespace cadre::imagenet {

struct TrainOptions {
  // With train/CLASS/*.ppm and val/CLASS/*.ppm. Empty: drawn pictures.
  std::string data_dir;
  // Of the training set, when it is drawn; the other set is a fifth of it.
  int drawn_pictures = 200;
  // In nodes; 0: as many as there are.
  int nodes = 0;
  // Of one node's processes together.
  int batch_size = 256;
  int data_workers = 4;
  int epochs = 90;
  double learning_rate = 0.1;
  double momentum = 0.9;
  double weight_decay = 1e-4;
  // Steps between two lines.
  int print_every = 10;
  // Empty: none is saved. A checkpoint that is found there is resumed from.
  std::string checkpoint_dir;
  // A checkpoint to begin with when checkpoint_dir has none.
  std::string resume;
  bool evaluate_only = false;
  uint64_t seed = 0;
  // Of the part of a picture that the network sees.
  int side = 224;
  // See ResNetOptions.
  std::vector<int64_t> blocks = {3, 4, 6, 3};
  int64_t width = 64;
  // For every exchange between ranks.
  double timeout_seconds = 600;
  // The same; thirty years are as good as any longer time, and fit.
  std::chrono::nanoseconds timeout() const {
    return std::chrono::nanoseconds(static_cast<int64_t>(std::min(timeout_seconds, 1e9) * 1e9));
  }
};

// The best checkpoint so far, in checkpoint_dir.
inline constexpr char kBestCheckpoint[] = "model_best.pt";

// The whole program, as this rank. Returns the first error that any part of it had.
Status Train(World& world, const TrainOptions& options);

}  // namespace cadre::imagenet

#endif  // CADRE_EXAMPLES_IMAGENET_TEMPLATE_TRAIN_H_
