// The ranks' summaries of a step, in a few elements behind the gradients of the last bucket, so
// that exchanging them costs no collective of its own. Pure.
//
//   0                        this rank's weight
//   1                        whether that is not 1
//   2 + kWordsOfRank * r     rank r's words (zero from all others): 1 + the parameter whose
//                            gradient is not finite, the step, four quarters of the fingerprint
//   behind the last rank     for each parameter, whether this rank had a gradient
//
// The sum over the ranks of all that is what everybody gets. Each rank's part is multiplied on the
// way, as its gradients are, so it writes its words divided by that factor; whole numbers up to
// kMaxTailWord come back exactly.
#ifndef CADRE_WORKER_RUNTIME_REDUCE_STEP_TAIL_H_
#define CADRE_WORKER_RUNTIME_REDUCE_STEP_TAIL_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cadre/communicator.h"
#include "cadre/status.h"

namespace cadre::reduce {

inline constexpr int64_t kMaxTailWord = int64_t{1} << 20;
inline constexpr size_t kWordsOfRank = 6;

// One rank's own part.
struct StepSummary {
  double weight = 1;
  std::optional<size_t> not_finite;
  int64_t step = 0;
  // 0: none in this step.
  uint64_t fingerprint = 0;
  std::vector<bool> used;
};

// All ranks' parts together.
struct StepSummaries {
  double weight = 0;
  // Whether some rank's weight was not 1.
  bool uneven = false;
  struct Rank {
    std::optional<size_t> not_finite;
    // Modulo kMaxTailWord.
    int64_t step = 0;
    uint64_t fingerprint = 0;
  };
  std::vector<Rank> ranks;
  std::vector<bool> used;
};

size_t TailCount(int ranks, size_t parameters);

// The factor of a rank of this weight for its gradients, so that their sum is the average when
// all weights are 1. A rank of weight 0 sends zeros; its tail is multiplied all the same.
double AverageFactor(double weight, int ranks);

// kFloat32 or kFloat64, with TailCount() elements.
void WriteTail(const StepSummary& summary, int rank, int ranks, const Buffer& tail);
StepSummaries ReadTail(const Buffer& tail, int ranks, size_t parameters);

// Whether all ranks are in step `step`; else INVALID_ARGUMENT, naming those that are not.
Status CheckSameStep(const StepSummaries& summaries, int64_t step);
// Ranks whose fingerprint is not that of rank 0.
std::vector<int> Drifted(const StepSummaries& summaries);

}  // namespace cadre::reduce

#endif  // CADRE_WORKER_RUNTIME_REDUCE_STEP_TAIL_H_
