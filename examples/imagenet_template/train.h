// Data-parallel training of a network on pictures in the layout of ImageNet.
#ifndef CADRE_EXAMPLES_IMAGENET_TEMPLATE_TRAIN_H_
#define CADRE_EXAMPLES_IMAGENET_TEMPLATE_TRAIN_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "cadre/connect.h"
#include "cadre/status.h"
#include "job_flags.h"

namespace cadre::imagenet {

struct TrainOptions {
  // With train/CLASS/*.jpg and val/CLASS/*.jpg. Empty: drawn pictures.
  std::string data_dir;
  JobFlags job;
  // cpu or cuda; empty: cuda where there is a GPU.
  std::string device;
  std::string arch = "resnet18";
  // Of the training set, when it is drawn; the other set is a fifth of it.
  int drawn_pictures = 200;
  // Of one node's processes together.
  int batch_size = 256;
  int data_workers = 4;
  int epochs = 90;
  // Without a checkpoint: so many are done.
  int start_epoch = 0;
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
  // Of a residual network; empty and 0: as its name says.
  std::vector<int64_t> blocks;
  int64_t width = 0;
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
