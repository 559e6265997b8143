// Data-parallel training of a ResNet on CIFAR-10.
#ifndef CADRE_EXAMPLES_CIFAR_RESNET50_TRAIN_H_
#define CADRE_EXAMPLES_CIFAR_RESNET50_TRAIN_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "cadre/connect.h"
#include "cadre/status.h"

namespace cadre::cifar {

struct TrainOptions {
  // Empty: images drawn by the program itself.
  std::string data_dir;
  // cpu or cuda; empty: cuda where there is a GPU.
  std::string device;
  // A file with parameters to begin with, as EpochCheckpointName() calls them; empty: none.
  std::string checkpoint;
  // Whether rank 0 writes such a file after each epoch.
  bool save = true;
  // Where it writes them; empty: a directory "checkpoint". In one that is given there are also
  // whole states of the training, the newest of which a restart resumes from.
  std::string checkpoint_dir;
  int epochs = 2;
  // Of all ranks together. Each takes its part, rounded down: three ranks take 42 of 128.
  int batch_size = 128;
  double learning_rate = 1e-4;
  double momentum = 0.9;
  double weight_decay = 5e-4;
  uint64_t seed = 0;
  // Of training images; 0 is all.
  int limit = 0;
  // The network: ResNet-50. See ResNetOptions.
  std::vector<int64_t> blocks = {3, 4, 6, 3};
  int64_t width = 64;
  // For every exchange between ranks.
  double timeout_seconds = 300;
  // The same; thirty years are as good as any longer time, and fit.
  std::chrono::nanoseconds timeout() const {
    return std::chrono::nanoseconds(static_cast<int64_t>(std::min(timeout_seconds, 1e9) * 1e9));
  }
};

// The whole program, as this rank. Returns the first error that any part of it had.
Status Train(World& world, const TrainOptions& options);

}  // namespace cadre::cifar

#endif  // CADRE_EXAMPLES_CIFAR_RESNET50_TRAIN_H_
