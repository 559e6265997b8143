// What each rank sends to and receives from every other rank in a collective. Pure, except for
// memory that a plan allocates.
//
// In all reductions each rank sums one part of the elements, in rank order, from what the others
// send directly to it, and then sends the sums to the ranks that need them. This moves as many
// bytes as a ring, in two rounds for any number of ranks, and gives the same bits on all ranks. It
// is the pairwise exchange of "Optimization of Collective Communication Operations in MPICH"
// (Thakur, Rabenseifner, Gropp, 2005), in chunks, so that the second round begins while the first
// goes on. float16 and bfloat16 are summed in float32 and rounded once.
#ifndef CADRE_WORKER_RUNTIME_SOCKETS_PLANS_H_
#define CADRE_WORKER_RUNTIME_SOCKETS_PLANS_H_

#include <cstddef>
#include <vector>

#include "cadre/communicator.h"
#include "cadre/span.h"
#include "worker_runtime/sockets/flow.h"

namespace cadre::sockets {

// Up to this many bytes per rank, each rank sends all its elements to all others: one round instead
// of two.
inline constexpr size_t kDirectBytes = size_t{32} << 10;
// The bytes that arrive for one step, from all ranks together.
inline constexpr size_t kStepBytes = size_t{512} << 10;
inline constexpr size_t kMinChunkBytes = size_t{16} << 10;

// The rank for which a plan is made, and the number of ranks.
struct Team {
  int rank = 0;
  int size = 0;
};

// Arguments are Communicator's, checked by the caller; Reduction::premultiply goes into the
// Opening. A plan is made only when its collective's turn has come, because it may read the
// buffers.
Plan PlanAllReduce(const Team& team, const Buffer& buffer, ReduceOp op);
Plan PlanReduce(const Team& team, const Buffer& buffer, ReduceOp op, int root);
// counts[r] is the number of elements of rank r's part; `input` holds the parts in rank order.
Plan PlanReduceScatter(const Team& team, const Buffer& input, const Buffer& output,
                       Span<const size_t> counts, ReduceOp op);
Plan PlanBroadcast(const Team& team, const Buffer& buffer, int root);
Plan PlanAllGather(const Team& team, const Buffer& input, const Buffer& output,
                   Span<const size_t> counts);
Plan PlanBarrier(const Team& team);

}  // namespace cadre::sockets

#endif  // CADRE_WORKER_RUNTIME_SOCKETS_PLANS_H_
