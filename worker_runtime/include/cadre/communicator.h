// Collectives over the workers of one generation. Backends: shared memory (CPU, one node), sockets
// (CPU, any nodes), hierarchical (both), NCCL (GPU); connect.h picks the one for CPU memory.
#ifndef CADRE_COMMUNICATOR_H_
#define CADRE_COMMUNICATOR_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "cadre/result.h"
#include "cadre/span.h"
#include "cadre/status.h"
#include "cadre/work.h"

namespace cadre {

enum class DataType { kFloat32, kFloat64, kFloat16, kInt32, kInt64, kUint8, kBfloat16 };
// Bytes of one element.
size_t SizeOf(DataType type);

// float32, float64, float16 or bfloat16.
bool IsFloatingPoint(DataType type);

// kAverage is the sum divided by size(); floating point types only.
enum class ReduceOp { kSum, kMax, kMin, kAverage };

// How elements of several ranks are combined. float16 and bfloat16 are computed in float32.
struct Reduction {
  // Implicit, since most callers need no factor.
  Reduction(ReduceOp op, double premultiply = 1) : op(op), premultiply(premultiply) {}  // NOLINT

  ReduceOp op;
  // This rank's elements are multiplied by it first; it may differ between ranks. Values other than
  // 1 need a floating point type.
  double premultiply;
};

// `count` elements of `type`; not owned.
struct Buffer {
  void* data = nullptr;
  size_t count = 0;
  DataType type = DataType::kFloat32;
};

// All ranks make the same calls in the same order, except Send and Receive, which involve two
// ranks. Calls return at once; the operations run in call order. After one has failed, all later
// ones fail with its status, and the buffers' content is undefined. Thread safe, but ordering calls
// between threads is the caller's responsibility. Floating point results have the same bits on all
// ranks. An operation that a backend lacks completes with UNIMPLEMENTED.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // In place.
  virtual std::shared_ptr<Work> AllReduce(Buffer buffer, Reduction reduction) = 0;
  // The result is in `root`'s buffer; the other ranks' buffers are unchanged.
  virtual std::shared_ptr<Work> Reduce(Buffer buffer, Reduction reduction, int root);
  // Rank r gets the r-th part of the all-reduced `input`. `input` has size() times the elements of
  // `output`, which may be this rank's own part of it.
  virtual std::shared_ptr<Work> ReduceScatter(Buffer input, Buffer output, Reduction reduction);
  // As above, but rank r gets counts[r] elements; all ranks pass the same counts.
  virtual std::shared_ptr<Work> ReduceScatterVarying(Buffer input, Buffer output,
                                                     Span<const size_t> counts,
                                                     Reduction reduction);
  virtual std::shared_ptr<Work> Broadcast(Buffer buffer, int root) = 0;
  // `output` has size() times the elements of `input`, in rank order; `input` may be this rank's
  // own part of it.
  virtual std::shared_ptr<Work> AllGather(Buffer input, Buffer output) = 0;
  // As above, but rank r contributes counts[r] elements; all ranks pass the same counts.
  virtual std::shared_ptr<Work> AllGatherVarying(Buffer input, Buffer output,
                                                 Span<const size_t> counts);
  virtual std::shared_ptr<Work> Barrier() = 0;

  // Point-to-point messages, independent of the order of other operations. Messages between two
  // ranks arrive in the order in which they were sent; if the next one's type, size or tag differs
  // from the receive's, the receive fails and describes both. A send may stay pending until it is
  // received.
  virtual std::shared_ptr<Work> Send(Buffer buffer, int to, int tag);
  virtual std::shared_ptr<Work> Receive(Buffer buffer, int from, int tag);

  // Returns a communicator of the ranks that pass the same color, ordered by key and then by rank
  // here. Collective, in order with the other operations; blocks. A rank with a negative color
  // joins no group and gets null. The result may outlive this.
  virtual Result<std::unique_ptr<Communicator>> Split(int color, int key);

  // Returns zeroed memory for buffers that are reduced often; the communicator reduces it without
  // copies if it can. Collective: all ranks allocate the same sizes in the same order.
  // RESOURCE_EXHAUSTED on all ranks: some rank has no memory. It may outlive the communicator.
  virtual Result<std::shared_ptr<void>> AllocateBuffer(size_t bytes);

  // Fails running and queued operations with ABORTED within a second. Idempotent.
  virtual void Abort() = 0;
};

struct CommunicatorOptions {
  // Distinguishes several communicators over the same workers.
  const char* name = "world";
  // Limits connecting, and each operation, counted from its start.
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);
};

}  // namespace cadre

#endif  // CADRE_COMMUNICATOR_H_
