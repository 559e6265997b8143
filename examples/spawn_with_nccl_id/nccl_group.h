// One process' part in an NCCL communicator. NCCL and CUDA's driver are loaded at run time.
#ifndef CADRE_EXAMPLES_SPAWN_WITH_NCCL_ID_NCCL_GROUP_H_
#define CADRE_EXAMPLES_SPAWN_WITH_NCCL_ID_NCCL_GROUP_H_

#include <string_view>

#include "cadre/result.h"

namespace cadre {

// How many GPUs this process sees. FAILED_PRECONDITION says why there is none.
Result<int> CountGpus();

// Joins the communicator of `id` on GPU `local_rank` (modulo their number), sums (rank + 1) over
// all ranks with an all-reduce, and gives the result. Errors are NCCL's and CUDA's own words. Waits
// for the other ranks without a limit of its own.
Result<float> SumRanksWithNccl(std::string_view id, int local_rank, int world_size);

}  // namespace cadre

#endif  // CADRE_EXAMPLES_SPAWN_WITH_NCCL_ID_NCCL_GROUP_H_
