#include "worker_runtime/nccl/root_plan.h"

namespace cadre::nccl {

int RootCount(int size, bool has_scalable_init) {
  if (!has_scalable_init || size <= kMaxRanksPerRoot) return 1;
  return (size + kMaxRanksPerRoot - 1) / kMaxRanksPerRoot;
}

bool RankHasRoot(int rank, int size, int roots) {
  const int larger = size % roots;
  const int per_root = size / roots;
  const int limit = larger * (per_root + 1);
  if (rank < limit) return rank % (per_root + 1) == 0;
  return (rank - limit) % per_root == 0;
}

int RootOfRank(int rank, int size, int roots) {
  const int larger = size % roots;
  const int per_root = size / roots;
  const int limit = larger * (per_root + 1);
  if (rank < limit) return rank / (per_root + 1);
  return larger + (rank - limit) / per_root;
}

}  // namespace cadre::nccl
