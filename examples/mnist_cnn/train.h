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
  // If empty, the program draws the digits itself.
  std::string data_dir;
  // If empty, there are no checkpoints, so that a restart begins at the first epoch.
  std::string checkpoint_dir;
  int epochs = 3;
  // The batch of each rank.
  int batch_size = 64;
  double learning_rate = 0.05;
  double momentum = 0.9;
  double weight_decay = 0;
  // cpu or cuda; empty means cuda if there is a GPU.
  std::string device;
  // How DataParallel synchronizes the ranks: a way of hooked_model.h.
  std::string sync = "fp32";
  // An option of wrapped_optimizer.h for DistributedOptimizer; if empty, `sync` is used.
  std::string dist_option;
  // The parameter of the sparse ones of both; see there.
  double sparsity = 0.05;
  uint64_t seed = 0;
  // At most so many training images are used; 0 means all.
  int limit = 0;
  // The number of libtorch's threads; 0 means one on each of several ranks, else all cores.
  int threads = 0;
  // The number of steps between two output lines.
  int log_every = 10;
  // The timeout of every exchange between ranks.
  double timeout_seconds = 60;
  // Returns timeout_seconds, limited to about thirty years, because longer times do not fit.
  std::chrono::nanoseconds timeout() const {
    return std::chrono::nanoseconds(static_cast<int64_t>(std::min(timeout_seconds, 1e9) * 1e9));
  }
  // If empty, no ledger is written; see ledger.h.
  std::string ledger_dir;
  // For demonstrations: this rank kills itself in this epoch of the job's first attempt; -1 means
  // no rank does.
  int fail_rank = -1;
  int fail_epoch = 2;
};

// Runs the whole program as this rank. Returns its exit status, or the first error that any part of
// it had.
Result<int> Train(Worker& worker, const TrainOptions& options);

}  // namespace cadre::mnist

#endif  // CADRE_EXAMPLES_MNIST_CNN_TRAIN_H_
