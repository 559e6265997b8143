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
  // If empty, the program draws the images itself.
  std::string data_dir;
  // cpu or cuda; empty means cuda if there is a GPU.
  std::string device;
  // A file with initial parameters, as EpochCheckpointName() names them; empty means none.
  std::string checkpoint;
  // Whether rank 0 writes such a file after each epoch.
  bool save = true;
  // Where rank 0 writes them; empty means a directory "checkpoint". A directory that is given also
  // receives whole training states, and a restart resumes from the newest of them.
  std::string checkpoint_dir;
  int epochs = 2;
  // The batch of all ranks together. Each takes its share, rounded down: three ranks take 42 of
  // 128.
  int batch_size = 128;
  double learning_rate = 1e-4;
  double momentum = 0.9;
  double weight_decay = 5e-4;
  uint64_t seed = 0;
  // At most so many training images are used; 0 means all.
  int limit = 0;
  // The network, by default ResNet-50; see ResNetOptions.
  std::vector<int64_t> blocks = {3, 4, 6, 3};
  int64_t width = 64;
  // The timeout of every exchange between ranks.
  double timeout_seconds = 300;
  // Returns timeout_seconds, limited to about thirty years, because longer times do not fit.
  std::chrono::nanoseconds timeout() const {
    return std::chrono::nanoseconds(static_cast<int64_t>(std::min(timeout_seconds, 1e9) * 1e9));
  }
};

// Runs the whole program as this rank. Returns the first error that any part of it had.
Status Train(World& world, const TrainOptions& options);

}  // namespace cadre::cifar

#endif  // CADRE_EXAMPLES_CIFAR_RESNET50_TRAIN_H_
