// Which gradients are reduced together. Pure.
#ifndef CADRE_WORKER_RUNTIME_REDUCE_BUCKET_H_
#define CADRE_WORKER_RUNTIME_REDUCE_BUCKET_H_

#include <cstddef>
#include <vector>

#include "cadre/communicator.h"
#include "cadre/span.h"

namespace cadre::reduce {

// The properties by which a gradient is assigned: only gradients of the same type and kind share a
// bucket.
struct GradientShape {
  size_t bytes = 0;
  DataType type = DataType::kFloat32;
  // -1: reduced here.
  int kind = -1;
};

// Indices into `gradients`.
using Bucket = std::vector<size_t>;

// Goes through the gradients in `order` and closes a bucket as soon as it holds at least the limit,
// so a bucket may exceed its limit by one gradient. The first bucket of each type and kind takes
// the first limit, and so on; the last limit holds for all that follow; without limits there is one
// bucket for each type and kind. Buckets come in the order in which they were closed, then those
// that never filled, by their first gradient. The same as PyTorch's
// compute_bucket_assignment_by_size.
std::vector<Bucket> AssignBuckets(Span<const GradientShape> gradients, Span<const size_t> limits,
                                  Span<const size_t> order);

// count - 1 ... 0: gradients become ready roughly in the reverse of the order in which a model
// registers its parameters.
std::vector<size_t> ReverseOrder(size_t count);

}  // namespace cadre::reduce

#endif  // CADRE_WORKER_RUNTIME_REDUCE_BUCKET_H_
