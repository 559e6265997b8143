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
  // A directory with train/CLASS/*.jpg and val/CLASS/*.jpg. If empty, the pictures are drawn.
  std::string data_dir;
  JobFlags job;
  // cpu or cuda; empty means cuda if there is a GPU.
  std::string device;
  std::string arch = "resnet18";
  // The size of the training set, if it is drawn; the validation set has a fifth of it.
  int drawn_pictures = 200;
  // The batch of one node's processes together.
  int batch_size = 256;
  int data_workers = 4;
  int epochs = 90;
  // The first epoch, if there is no checkpoint.
  int start_epoch = 0;
  double learning_rate = 0.1;
  double momentum = 0.9;
  double weight_decay = 1e-4;
  // The number of steps between two output lines.
  int print_every = 10;
  // If empty, no checkpoint is saved. Training resumes from a checkpoint that is found there.
  std::string checkpoint_dir;
  // A checkpoint to begin with when checkpoint_dir has none.
  std::string resume;
  bool evaluate_only = false;
  uint64_t seed = 0;
  // The side, in pixels, of the square that the network sees.
  int side = 224;
  // For a residual network; empty and 0 mean the blocks and width of `arch`.
  std::vector<int64_t> blocks;
  int64_t width = 0;
  // The timeout of every exchange between ranks.
  double timeout_seconds = 600;
  // Returns timeout_seconds, limited to about thirty years, because longer times do not fit.
  std::chrono::nanoseconds timeout() const {
    return std::chrono::nanoseconds(static_cast<int64_t>(std::min(timeout_seconds, 1e9) * 1e9));
  }
};

// The file of the best checkpoint so far, in checkpoint_dir.
inline constexpr char kBestCheckpoint[] = "model_best.pt";

// Runs the whole program as this rank. Returns the first error that any part of it had.
Status Train(World& world, const TrainOptions& options);

}  // namespace cadre::imagenet

#endif  // CADRE_EXAMPLES_IMAGENET_TEMPLATE_TRAIN_H_
