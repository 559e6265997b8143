// What each rank sends to and receives from each other one in a collective. Pure, but for memory
// that a plan brings along.
//
// All reductions sum a part of the elements on each rank, in rank order, from what the others send
// straight to it, and then send the sums to whoever wants them: as many bytes as a ring moves, two
// rounds whatever the number of ranks, and the same bits on all ranks. It is the pairwise exchange
// of "Optimization of Collective Communication Operations in MPICH" (Thakur, Rabenseifner, Gropp,
// 2005), in chunks, so that the second round begins while the first goes on. float16 and bfloat16
// are summed in float32 and rounded once.
#ifndef CADRE_WORKER_RUNTIME_SOCKETS_PLANS_H_
#define CADRE_WORKER_RUNTIME_SOCKETS_PLANS_H_

#include <cstddef>
#include <vector>

#include "cadre/communicator.h"
#include "cadre/span.h"
#include "worker_runtime/sockets/flow.h"

namespace cadre::sockets {

// Where each rank sends all it has to all others, a rank sends at most so many bytes: one round in
// place of two.
inline constexpr size_t kDirectBytes = size_t{32} << 10;
// What comes in for one step, from all ranks together.
inline constexpr size_t kStepBytes = size_t{512} << 10;
inline constexpr size_t kMinChunkBytes = size_t{16} << 10;

// Who makes a plan.
struct Team {
  int rank = 0;
  int size = 0;
};

// Arguments as Communicator's, checked by the caller; Reduction::premultiply goes into the Opening.
// A plan is made when its collective's turn has come: it may read the buffers.
Plan PlanAllReduce(const Team& team, const Buffer& buffer, ReduceOp op);
Plan PlanReduce(const Team& team, const Buffer& buffer, ReduceOp op, int root);
// counts[r]: elements of rank r's part, which lie in `input` in rank order.
Plan PlanReduceScatter(const Team& team, const Buffer& input, const Buffer& output,
                       Span<const size_t> counts, ReduceOp op);
Plan PlanBroadcast(const Team& team, const Buffer& buffer, int root);
Plan PlanAllGather(const Team& team, const Buffer& input, const Buffer& output,
                   Span<const size_t> counts);
Plan PlanBarrier(const Team& team);

}  // namespace cadre::sockets

#endif  // CADRE_WORKER_RUNTIME_SOCKETS_PLANS_H_
