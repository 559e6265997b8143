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

// kAverage: the sum over size(); of floating point elements only.
enum class ReduceOp { kSum, kMax, kMin, kAverage };

// How elements of several ranks become one. float16 and bfloat16 are computed in float32.
struct Reduction {
  // Implicit: most callers want an operation as it is.
  Reduction(ReduceOp op, double premultiply = 1) : op(op), premultiply(premultiply) {}  // NOLINT

  ReduceOp op;
  // This rank's elements are multiplied with it first; it may differ between ranks. Other than 1
  // for floating point elements only.
  double premultiply;
};

// `count` elements of `type`; not owned.
struct Buffer {
  void* data = nullptr;
  size_t count = 0;
  DataType type = DataType::kFloat32;
};

// All ranks make the same calls in the same order, but for Send and Receive, which concern two.
// Calls return at once; the operations run in that order. After one failed, all later ones fail
// with its status: what the buffers hold is then unknown. Thread safe, but the order between
// threads is the caller's duty. Floating point results are the same bits on all ranks. An operation
// that a backend does not have ends with UNIMPLEMENTED.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // In place.
  virtual std::shared_ptr<Work> AllReduce(Buffer buffer, Reduction reduction) = 0;
  // Into `root`'s buffer; the others' stay as they are.
  virtual std::shared_ptr<Work> Reduce(Buffer buffer, Reduction reduction, int root);
  // Rank r gets the r-th part of what an all-reduce of `input` would give. `input` has size() times
  // the elements of `output`, and may contain it at its own place.
  virtual std::shared_ptr<Work> ReduceScatter(Buffer input, Buffer output, Reduction reduction);
  // As above, where rank r gets counts[r] elements; all ranks know all counts.
  virtual std::shared_ptr<Work> ReduceScatterVarying(Buffer input, Buffer output,
                                                     Span<const size_t> counts,
                                                     Reduction reduction);
  virtual std::shared_ptr<Work> Broadcast(Buffer buffer, int root) = 0;
  // `output` has size() times the elements of `input`, in rank order, and may contain it at its own
  // place.
  virtual std::shared_ptr<Work> AllGather(Buffer input, Buffer output) = 0;
  // As above, where rank r gives counts[r] elements; all ranks know all counts.
  virtual std::shared_ptr<Work> AllGatherVarying(Buffer input, Buffer output,
                                                 Span<const size_t> counts);
  virtual std::shared_ptr<Work> Barrier() = 0;

  // From one rank to another, beside the order of everything else. Messages between two ranks come
  // in the order they were sent in; the next one having another type, size or tag than the receive
  // is an error that says so. A send may last until it is received.
  virtual std::shared_ptr<Work> Send(Buffer buffer, int to, int tag);
  virtual std::shared_ptr<Work> Receive(Buffer buffer, int from, int tag);

  // A communicator of the ranks that give the same color, ordered by key and then by rank here.
  // Collective, in order with the rest; waits. A negative color takes part in no group and gets
  // null. May outlive this.
  virtual Result<std::unique_ptr<Communicator>> Split(int color, int key);

  // Zeroed memory for buffers that are reduced often; the communicator reduces it without copies
  // where it can. Collective: all ranks allocate the same sizes in the same order.
  // RESOURCE_EXHAUSTED (on all ranks): some rank has no memory. It may outlive the communicator.
  virtual Result<std::shared_ptr<void>> AllocateBuffer(size_t bytes);

  // Fails what runs and what waits with ABORTED, within a second. Idempotent.
  virtual void Abort() = 0;
};

struct CommunicatorOptions {
  // Distinguishes several communicators over the same workers.
  const char* name = "world";
  // For connecting, and for each operation from its start.
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);
};

}  // namespace cadre

#endif  // CADRE_COMMUNICATOR_H_
