// Data-parallel training of a small convolutional network on images of digits.
#ifndef CADRE_EXAMPLES_MNIST_CNN_TRAIN_H_
#define CADRE_EXAMPLES_MNIST_CNN_TRAIN_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include "cadre/result.h"
#include "cadre/worker.h"

namespace cadre::mnist {

struct TrainOptions {
  // Empty: digits drawn by the program itself.
  std::string data_dir;
  // Empty: no checkpoints, so that a restart begins at the first epoch.
  std::string checkpoint_dir;
  int epochs = 3;
  // On each rank.
  int batch_size = 64;
  double learning_rate = 0.05;
  double momentum = 0.9;
  double weight_decay = 0;
  // cpu or cuda; empty: cuda where there is a GPU.
  std::string device;
  // How ranks are synchronized, by DataParallel: a way of hooked_model.h.
  std::string sync = "fp32";
  // Or by DistributedOptimizer: an option of wrapped_optimizer.h. Empty: `sync` counts.
  std::string dist_option;
  // Of the sparse ones among both; see there.
  double sparsity = 0.05;
  uint64_t seed = 0;
  // Of training images; 0 is all.
  int limit = 0;
  // Of libtorch; 0: one on each of several ranks, else all cores.
  int threads = 0;
  // A line every so many steps.
  int log_every = 10;
  // For every exchange between ranks.
  double timeout_seconds = 60;
  // The same; thirty years are as good as any longer time, and fit.
  std::chrono::nanoseconds timeout() const {
    return std::chrono::nanoseconds(static_cast<int64_t>(std::min(timeout_seconds, 1e9) * 1e9));
  }
  // Empty: none is written; see ledger.h.
  std::string ledger_dir;
  // For demonstrations: this rank kills itself in this epoch of the job's first attempt. -1:
  // nobody.
  int fail_rank = -1;
  int fail_epoch = 2;
};

// The whole program, as this rank, with what it is to exit with; or the first error that any part
// of it had.
Result<int> Train(Worker& worker, const TrainOptions& options);

}  // namespace cadre::mnist

#endif  // CADRE_EXAMPLES_MNIST_CNN_TRAIN_H_
