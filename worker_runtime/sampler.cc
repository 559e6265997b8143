#include "cadre/sampler.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre {
namespace {

std::vector<int64_t> Order(int64_t samples, bool shuffle, uint64_t seed, int64_t epoch) {
  if (shuffle) return RandomPermutation(samples, seed + static_cast<uint64_t>(epoch));
  std::vector<int64_t> order(static_cast<size_t>(samples));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

Status CheckShuffle(int64_t samples, bool shuffle) {
  if (!shuffle || samples <= kMaxShuffledSamples) return OkStatus();
  return InvalidArgumentError(
      absl::StrCat("cannot shuffle ", samples, " samples: at most ", kMaxShuffledSamples));
}

Status CheckWorld(int64_t samples, int world_size, int rank) {
  if (samples < 0) {
    return InvalidArgumentError(
        absl::StrCat("a data set of ", samples, " samples: the number must not be negative"));
  }
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    return InvalidArgumentError(
        absl::StrCat("rank ", rank, " of ", world_size, ": ranks are 0 to world size - 1"));
  }
  return OkStatus();
}

}  // namespace

Result<DistributedSampler> DistributedSampler::Create(const SamplerOptions& options) {
  RETURN_IF_ERROR(CheckWorld(options.samples, options.world_size, options.rank));
  RETURN_IF_ERROR(CheckShuffle(options.samples, options.shuffle));
  return DistributedSampler(options);
}

DistributedSampler::DistributedSampler(const SamplerOptions& options) : options_(options) {
  const int64_t world = options.world_size;
  size_ = options.drop_last ? options.samples / world : (options.samples + world - 1) / world;
}

std::vector<int64_t> DistributedSampler::Epoch(int64_t epoch) const {
  const std::vector<int64_t> order =
      Order(options_.samples, options_.shuffle, options_.seed, epoch);
  std::vector<int64_t> mine;
  mine.reserve(static_cast<size_t>(size_));
  for (int64_t i = 0; i < size_; ++i) {
    // After the end it continues from the beginning, repeatedly if there are fewer samples than
    // ranks.
    mine.push_back(order[(i * options_.world_size + options_.rank) % options_.samples]);
  }
  return mine;
}

Result<EpochCursor> EpochCursor::Create(int64_t samples, bool shuffle, uint64_t seed) {
  RETURN_IF_ERROR(CheckWorld(samples, /*world_size=*/1, /*rank=*/0));
  RETURN_IF_ERROR(CheckShuffle(samples, shuffle));
  return EpochCursor(samples, shuffle, seed);
}

EpochCursor::EpochCursor(int64_t samples, bool shuffle, uint64_t seed)
    : samples_(samples), shuffle_(shuffle), seed_(seed), order_(Order(samples, shuffle, seed, 0)) {}

void EpochCursor::MoveTo(int64_t epoch, int64_t taken) {
  if (epoch != epoch_) order_ = Order(samples_, shuffle_, seed_, epoch);
  epoch_ = epoch;
  taken_ = taken;
}

std::vector<int64_t> EpochCursor::Next(int rank, int world_size, int64_t batch) const {
  std::vector<int64_t> mine;
  for (int64_t i = 0; i < batch; ++i) {
    const int64_t at = taken_ + i * world_size + rank;
    if (at >= samples_) break;
    mine.push_back(order_[static_cast<size_t>(at)]);
  }
  return mine;
}

void EpochCursor::Advance(int world_size, int64_t batch) {
  taken_ = std::min(samples_, taken_ + batch * world_size);
}

std::vector<int64_t> RandomPermutation(int64_t n, uint64_t seed) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 generator(static_cast<uint32_t>(seed));
  for (int64_t i = 0; i + 1 < n; ++i) {
    const int64_t step = generator() % static_cast<uint64_t>(n - i);
    std::swap(order[i], order[i + step]);
  }
  return order;
}

Result<EvaluationShard> ShardForEvaluation(int64_t samples, int world_size, int rank) {
  RETURN_IF_ERROR(CheckWorld(samples, world_size, rank));
  const int64_t each = samples / world_size;
  const int64_t larger = samples % world_size;  // this many ranks take one more
  EvaluationShard shard;
  shard.begin = rank * each + std::min<int64_t>(rank, larger);
  shard.end = shard.begin + each + (rank < larger ? 1 : 0);
  return shard;
}

}  // namespace cadre
