#include "worker_runtime/reduce/step_tail.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

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

int64_t GetWord(const Buffer& tail, size_t at) { return std::llround(Get(tail, at)); }

}  // namespace

size_t TailCount(int ranks, size_t parameters) { return PlaceOf(ranks) + parameters; }

double TailFactor(double weight, int ranks) { return (weight > 0 ? weight : 1) / ranks; }

void WriteTail(const StepNote& note, int rank, int ranks, const Buffer& tail) {
  const double factor = TailFactor(note.weight, ranks);
  for (size_t i = 0; i < tail.count; ++i) Put(tail, i, 0);
  Put(tail, kWeight, note.weight / factor);
  Put(tail, kUneven, (note.weight == 1 ? 0 : 1) / factor);
  size_t at = PlaceOf(rank);
  Put(tail, at++, (note.not_finite ? static_cast<double>(*note.not_finite + 1) : 0) / factor);
  Put(tail, at++, static_cast<double>(note.step % kMaxTailWord) / factor);
  for (size_t quarter = 0; quarter < kQuarters; ++quarter) {
    const uint64_t bits = (note.fingerprint >> (quarter * kQuarterBits)) & 0xffff;
    Put(tail, at++, static_cast<double>(bits) / factor);
  }
  for (size_t i = 0; i < note.used.size(); ++i) {
    Put(tail, PlaceOf(ranks) + i, (note.used[i] ? 1 : 0) / factor);
  }
}

StepNotes ReadTail(const Buffer& tail, int ranks, size_t parameters) {
  StepNotes notes;
  notes.weight = Get(tail, kWeight);
  notes.uneven = GetWord(tail, kUneven) != 0;
  for (int rank = 0; rank < ranks; ++rank) {
    StepNotes::Rank& one = notes.ranks.emplace_back();
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
    notes.used.push_back(GetWord(tail, PlaceOf(ranks) + i) > 0);
  }
  return notes;
}

absl::Status CheckSameStep(const StepNotes& notes, int64_t step) {
  const int64_t mine = step % kMaxTailWord;
  std::vector<std::string> others;
  for (size_t rank = 0; rank < notes.ranks.size(); ++rank) {
    const int64_t theirs = notes.ranks[rank].step;
    if (theirs == mine) continue;
    others.push_back(absl::StrCat("rank ", rank, " is in step ", step - mine + theirs));
  }
  if (others.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the ranks reduced gradients of different steps: here step ", step, ", but ",
                   absl::StrJoin(others, ", ")));
}

std::vector<int> Drifted(const StepNotes& notes) {
  std::vector<int> ranks;
  for (size_t rank = 1; rank < notes.ranks.size(); ++rank) {
    if (notes.ranks[rank].fingerprint != notes.ranks[0].fingerprint) {
      ranks.push_back(static_cast<int>(rank));
    }
  }
  return ranks;
}

}  // namespace cadre::reduce
