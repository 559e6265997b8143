// How a bucket's gradients are combined over all ranks: a Reducer calls the hook in place of its
// own all-reduce. hooks/ has ready-made ones; some of them wrap another hook.
#ifndef CADRE_COMMUNICATION_HOOK_H_
#define CADRE_COMMUNICATION_HOOK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/span.h"
#include "cadre/status.h"

namespace cadre {

// One parameter's gradient within a bucket; offset and count are in elements. `parameter` is the
// index in the order of registration and does not change when buckets are laid out anew.
struct GradientView {
  size_t parameter = 0;
  size_t offset = 0;
  size_t count = 0;
  // Empty if the caller gave no shape.
  Span<const int64_t> shape;
};

// A bucket holds gradients only: the reducer's own summaries do not go through a hook. The spans
// are valid until the next Layout().
struct BucketView {
  size_t index = 0;
  size_t bucket_count = 0;
  Buffer buffer;
  Span<const GradientView> gradients;
};

// The mean of the ranks' gradients, divided before it is summed.
struct PlainAverage {
  // Elements are clamped to [-limit, limit] first.
  std::optional<double> limit;
  // The type in which they are then divided, sent and summed; nullopt: the gradients' own type.
  std::optional<DataType> travels_as;
};

// Used by one reducer. Layout(), Start() and the state are used by one thread at a time; Start()
// does not block. All ranks call Start() for all buckets of a layout, in the order of their
// indices; until the last of these works is done, only the hook may use the communicator.
class CommunicationHook {
 public:
  virtual ~CommunicationHook() = default;

  // Sets the buckets of the following steps; called while nothing runs. A hook keys its
  // per-gradient state by parameter, so that it survives a new layout. INVALID_ARGUMENT: a type or
  // size that the hook does not support.
  virtual Status Layout(Span<const BucketView> buckets) = 0;

  // On entry the bucket holds this rank's own gradients; when the work is done, it holds what the
  // optimizer is to use. The hook also does the division, by whatever it considers right.
  virtual std::shared_ptr<Work> Start(Communicator& communicator, const BucketView& bucket) = 0;

  // This rank's state between steps (residuals, factors, counters); called while nothing runs. It
  // differs between ranks and belongs into each rank's part of a checkpoint. LoadState() is called
  // before the first step; a state of another kind of hook or of other parameters fails with
  // INVALID_ARGUMENT there or in Layout().
  virtual Result<std::string> SaveState() const = 0;
  virtual Status LoadState(std::string_view state) = 0;

  // Whether all ranks hold the same gradients afterwards, so that replicas stay equal.
  virtual bool KeepsReplicasEqual() const { return true; }

  // Bytes that this rank has passed to collectives so far, the measure of compression.
  virtual uint64_t bytes_given() const = 0;

  // The average that this hook amounts to, if it is no more than that and devices can compute it
  // themselves: gradients on devices then bypass host memory, and the hook is not called for them.
  virtual std::optional<PlainAverage> plain_average() const { return std::nullopt; }

  // The options that must be the same on all ranks, for the error message when they are not.
  virtual std::string DescribeOptions() const { return {}; }
};

}  // namespace cadre

#endif  // CADRE_COMMUNICATION_HOOK_H_
