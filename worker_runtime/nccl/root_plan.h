// Which ranks mint the ids of a communicator's roots, so that a large one forms in parallel. Pure.
// The layout is NCCL's own: every root serves a run of neighbouring ranks, the first runs have one
// rank more where they cannot be equal.
#ifndef CADRE_WORKER_RUNTIME_NCCL_ROOT_PLAN_H_
#define CADRE_WORKER_RUNTIME_NCCL_ROOT_PLAN_H_

namespace cadre::nccl {

// Ranks that connect through one root; beyond them ncclCommInitRankScalable gets several ids.
constexpr int kMaxRanksPerRoot = 128;

// How many roots a communicator of `size` ranks has; 1 where NCCL cannot have several.
int RootCount(int size, bool has_scalable_init);

// Whether `rank` is the first that a root serves. 0 <= rank < size, 1 <= roots <= size.
bool RankHasRoot(int rank, int size, int roots);

// Which root serves `rank`.
int RootOfRank(int rank, int size, int roots);

}  // namespace cadre::nccl

#endif  // CADRE_WORKER_RUNTIME_NCCL_ROOT_PLAN_H_
