#include "worker_runtime/reduce/step_tail.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"

namespace cadre::reduce {
namespace {

constexpr size_t kWeight = 0;
constexpr size_t kUneven = 1;
constexpr size_t kFirstRank = 2;
constexpr size_t kQuarters = 4;
constexpr size_t kQuarterBits = 16;

size_t PlaceOf(int rank) { return kFirstRank + kWordsOfRank * static_cast<size_t>(rank); }

void Put(const Buffer& tail, size_t at, double value) {
  if (tail.type == DataType::kFloat64) {
    static_cast<double*>(tail.data)[at] = value;
  } else {
    static_cast<float*>(tail.data)[at] = static_cast<float>(value);
  }
}

double Get(const Buffer& tail, size_t at) {
  return tail.type == DataType::kFloat64 ? static_cast<const double*>(tail.data)[at]
                                         : static_cast<const float*>(tail.data)[at];
}

// Counts of samples add up to a whole number, which the way in float32 may have missed by a little.
double GetWeight(const Buffer& tail) {
  constexpr double kMissedBy = 1e-6;
  const double weight = Get(tail, kWeight), whole = std::round(weight);
  return std::abs(weight - whole) < kMissedBy * whole ? whole : weight;
}

int64_t GetWord(const Buffer& tail, size_t at) { return std::llround(Get(tail, at)); }

}  // namespace

size_t TailCount(int ranks, size_t parameters) { return PlaceOf(ranks) + parameters; }

double AverageFactor(double weight, int ranks) { return (weight > 0 ? weight : 1) / ranks; }

void WriteTail(const StepSummary& summary, int rank, int ranks, const Buffer& tail) {
  CADRE_CHECK(tail.count == TailCount(ranks, summary.used.size()), "a tail of ", tail.count,
              " elements for ", summary.used.size(), " gradients of ", ranks, " ranks");
  const double factor = AverageFactor(summary.weight, ranks);
  for (size_t i = 0; i < tail.count; ++i) Put(tail, i, 0);
  Put(tail, kWeight, summary.weight / factor);
  Put(tail, kUneven, (summary.weight == 1 ? 0 : 1) / factor);
  size_t at = PlaceOf(rank);
  Put(tail, at++, (summary.not_finite ? static_cast<double>(*summary.not_finite + 1) : 0) / factor);
  Put(tail, at++, static_cast<double>(summary.step % kMaxTailWord) / factor);
  for (size_t quarter = 0; quarter < kQuarters; ++quarter) {
    const uint64_t bits = (summary.fingerprint >> (quarter * kQuarterBits)) & 0xffff;
    Put(tail, at++, static_cast<double>(bits) / factor);
  }
  for (size_t i = 0; i < summary.used.size(); ++i) {
    Put(tail, PlaceOf(ranks) + i, (summary.used[i] ? 1 : 0) / factor);
  }
}

StepSummaries ReadTail(const Buffer& tail, int ranks, size_t parameters) {
  StepSummaries summaries;
  summaries.weight = GetWeight(tail);
  summaries.uneven = GetWord(tail, kUneven) != 0;
  for (int rank = 0; rank < ranks; ++rank) {
    StepSummaries::Rank& one = summaries.ranks.emplace_back();
    size_t at = PlaceOf(rank);
    const int64_t bad = GetWord(tail, at++);
    if (bad > 0) one.not_finite = static_cast<size_t>(bad - 1);
    one.step = GetWord(tail, at++);
    for (size_t quarter = 0; quarter < kQuarters; ++quarter) {
      one.fingerprint |= (static_cast<uint64_t>(GetWord(tail, at++)) & 0xffff)
                         << (quarter * kQuarterBits);
    }
  }
  for (size_t i = 0; i < parameters; ++i) {
    summaries.used.push_back(GetWord(tail, PlaceOf(ranks) + i) > 0);
  }
  return summaries;
}

Status CheckSameStep(const StepSummaries& summaries, int64_t step) {
  const int64_t mine = step % kMaxTailWord;
  std::vector<std::string> others;
  for (size_t rank = 0; rank < summaries.ranks.size(); ++rank) {
    const int64_t theirs = summaries.ranks[rank].step;
    if (theirs == mine) continue;
    others.push_back(absl::StrCat("rank ", rank, " is in step ", step - mine + theirs));
  }
  if (others.empty()) return OkStatus();
  return InvalidArgumentError(
      absl::StrCat("the ranks reduced gradients of different steps: here step ", step, ", but ",
                   absl::StrJoin(others, ", ")));
}

std::vector<int> Drifted(const StepSummaries& summaries) {
  std::vector<int> ranks;
  for (size_t rank = 1; rank < summaries.ranks.size(); ++rank) {
    if (summaries.ranks[rank].fingerprint != summaries.ranks[0].fingerprint) {
      ranks.push_back(static_cast<int>(rank));
    }
  }
  return ranks;
}

}  // namespace cadre::reduce
