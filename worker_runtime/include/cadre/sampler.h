// Which samples a rank takes. Pure; the same numbers as PyTorch's DistributedSampler.
#ifndef CADRE_SAMPLER_H_
#define CADRE_SAMPLER_H_

#include <cstdint>
#include <vector>

#include "cadre/result.h"

namespace cadre {

// Data sets up to this size are shuffled like torch.randperm, which draws differently beyond it.
constexpr int64_t kMaxShuffledSamples = (int64_t{1} << 32) / 20 - 1;

struct SamplerOptions {
  int64_t samples = 0;  // in the whole data set
  int world_size = 1;
  int rank = 0;
  bool shuffle = true;
  uint64_t seed = 0;
  // The samples that do not divide evenly are left out; else some from the beginning come twice.
  bool drop_last = false;
};

// Not thread safe.
class DistributedSampler {
 public:
  // INVALID_ARGUMENT saying which option makes no sense.
  static Result<DistributedSampler> Create(const SamplerOptions& options);

  // How many samples each rank takes: the same number on all.
  int64_t size() const { return size_; }
  // This rank's samples in that epoch, in order. Epochs of one seed differ; (seed, epoch) and
  // (seed + 1, epoch - 1) are the same, as in PyTorch.
  std::vector<int64_t> Epoch(int64_t epoch) const;

 private:
  explicit DistributedSampler(const SamplerOptions& options);

  SamplerOptions options_;
  int64_t size_ = 0;
};

// Which samples of an epoch are still to be taken, where the number of ranks may change from one
// step to the next: each sample is taken once, by one rank. While it does not change, ranks take
// the same samples as a DistributedSampler gives them, but no sample comes twice at the end: ranks
// may have fewer samples in the last step, or none. Not thread safe.
class EpochCursor {
 public:
  // INVALID_ARGUMENT: a negative number of samples, or more than can be shuffled.
  static Result<EpochCursor> Create(int64_t samples, bool shuffle, uint64_t seed);

  // From 0.
  int64_t epoch() const { return epoch_; }
  // Samples of the epoch that were taken.
  int64_t taken() const { return taken_; }
  bool AtEnd() const { return taken_ == samples_; }
  void MoveTo(int64_t epoch, int64_t taken);

  // This rank's samples in the next step, `batch` at most.
  std::vector<int64_t> Next(int rank, int world_size, int64_t batch) const;
  // That step is done, by all ranks.
  void Advance(int world_size, int64_t batch);

 private:
  EpochCursor(int64_t samples, bool shuffle, uint64_t seed);

  int64_t samples_ = 0;
  bool shuffle_ = true;
  uint64_t seed_ = 0;
  int64_t epoch_ = 0;
  int64_t taken_ = 0;
  std::vector<int64_t> order_;  // of the epoch
};

// torch.randperm(n) on the CPU after manual_seed(seed), for n up to kMaxShuffledSamples.
std::vector<int64_t> RandomPermutation(int64_t n, uint64_t seed);

// A contiguous part of an evaluation set: every sample is taken by exactly one rank, so ranks may
// have different counts (by at most one).
struct EvaluationShard {
  int64_t begin = 0;
  int64_t end = 0;  // beyond the last
};
Result<EvaluationShard> ShardForEvaluation(int64_t samples, int world_size, int rank);

}  // namespace cadre

#endif  // CADRE_SAMPLER_H_
