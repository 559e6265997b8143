// Chooses the samples of each rank. Pure; the results equal those of PyTorch's DistributedSampler.
#ifndef CADRE_SAMPLER_H_
#define CADRE_SAMPLER_H_

#include <cstdint>
#include <vector>

#include "cadre/result.h"

namespace cadre {

// Data sets of up to this size are shuffled like torch.randperm, which uses another method for
// larger ones.
constexpr int64_t kMaxShuffledSamples = (int64_t{1} << 32) / 20 - 1;

struct SamplerOptions {
  int64_t samples = 0;  // in the whole data set
  int world_size = 1;
  int rank = 0;
  bool shuffle = true;
  uint64_t seed = 0;
  // Leaves out the samples that do not divide evenly; otherwise some from the beginning are
  // repeated.
  bool drop_last = false;
};

// Not thread safe.
class DistributedSampler {
 public:
  // INVALID_ARGUMENT, naming the invalid option.
  static Result<DistributedSampler> Create(const SamplerOptions& options);

  // The number of samples of each rank, the same on all.
  int64_t size() const { return size_; }
  // Returns this rank's samples in that epoch, in order. Epochs of one seed differ; (seed, epoch)
  // and (seed + 1, epoch - 1) are the same, as in PyTorch.
  std::vector<int64_t> Epoch(int64_t epoch) const;

 private:
  explicit DistributedSampler(const SamplerOptions& options);

  SamplerOptions options_;
  int64_t size_ = 0;
};

// Tracks the remaining samples of an epoch when the number of ranks may change from one step to the
// next: each sample is taken once, by one rank. While the number does not change, ranks take the
// same samples as with a DistributedSampler, but no sample is repeated at the end: ranks may have
// fewer samples in the last step, or none. Not thread safe.
class EpochCursor {
 public:
  // INVALID_ARGUMENT: `samples` is negative, or more than can be shuffled.
  static Result<EpochCursor> Create(int64_t samples, bool shuffle, uint64_t seed);

  // Counts from 0.
  int64_t epoch() const { return epoch_; }
  // The number of samples of the epoch that have been taken.
  int64_t taken() const { return taken_; }
  bool AtEnd() const { return taken_ == samples_; }
  void MoveTo(int64_t epoch, int64_t taken);

  // Returns this rank's samples of the next step, at most `batch`.
  std::vector<int64_t> Next(int rank, int world_size, int64_t batch) const;
  // Call when all ranks have finished that step.
  void Advance(int world_size, int64_t batch);

 private:
  EpochCursor(int64_t samples, bool shuffle, uint64_t seed);

  int64_t samples_ = 0;
  bool shuffle_ = true;
  uint64_t seed_ = 0;
  int64_t epoch_ = 0;
  int64_t taken_ = 0;
  std::vector<int64_t> order_;  // of the current epoch
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
