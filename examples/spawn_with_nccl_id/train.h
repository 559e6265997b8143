// What each process does once it is in: it trains the digits' network with the others. All that
// they share is a communicator between their GPUs.
#ifndef CADRE_EXAMPLES_SPAWN_WITH_NCCL_ID_TRAIN_H_
#define CADRE_EXAMPLES_SPAWN_WITH_NCCL_ID_TRAIN_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "cadre/communicator.h"
#include "cadre/status.h"

namespace cadre {

struct TrainOptions {
  std::string data_dir;  // with MNIST's files; if empty, digits are drawn
  int epochs = 3;
  int batch_size = 64;  // of each process
  double learning_rate = 0.05;
  double momentum = 0.9;
  double weight_decay = 0;
  uint64_t seed = 0;
  int limit = 0;  // of training images; 0 is all
  // The timeout of every exchange between the processes.
  std::chrono::nanoseconds timeout = std::chrono::minutes(1);
};

// Runs the whole training as the communicator's rank, on the calling thread's GPU, or on the CPU if
// libtorch has no CUDA. Rank 0 prints SINGA's lines. All ranks end with the same parameters, or
// DATA_LOSS says that they do not.
Status Train(Communicator& gpus, const TrainOptions& options);

}  // namespace cadre

#endif  // CADRE_EXAMPLES_SPAWN_WITH_NCCL_ID_TRAIN_H_
