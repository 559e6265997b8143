// The example's training, on all workers of a job.
#ifndef CADRE_EXAMPLES_SHARDED_TRANSFORMER_TRAIN_H_
#define CADRE_EXAMPLES_SHARDED_TRANSFORMER_TRAIN_H_

#include <cstdint>
#include <string>

#include "cadre/connect.h"
#include "cadre/status.h"
#include "gpt.h"

namespace cadre::transformer {

struct TrainOptions {
  std::string strategy = "ddp";
  Shape shape;
  int64_t steps = 200;
  int64_t batch = 16;  // sequences, of all ranks together
  double learning_rate = 3e-3;
  double max_norm = 1;
  uint64_t seed = 1;
  std::string text_file;  // if empty, the sonnets
  std::string device;     // see device.h
  // The type in which operators compute where that is safe; the parameters are always float32. See
  // precision.h.
  std::string precision = "float32";
  double loss_scale = 65536;  // of float16, at first
  std::string checkpoint_dir;
  int64_t save_every = 50;  // steps
  int64_t log_every = 20;   // steps
  std::string prompt = "Shall I compare ";
  int64_t write = 160;  // bytes, at the end
  // For demonstrations: this rank kills itself before this step of the job's first life.
  int fail_rank = -1;
  int64_t fail_step = 120;
};

Status Train(const World& world, const TrainOptions& options);

}  // namespace cadre::transformer

#endif  // CADRE_EXAMPLES_SHARDED_TRANSFORMER_TRAIN_H_
