// How the gradients of a bucket become those of all ranks: what a Reducer calls in place of its own
// all-reduce. hooks/ has those that are ready to use; some go around another one.
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

// Where one parameter's gradient is in a bucket. `parameter` counts in the order of registration
// and stays the same when buckets are laid out anew.
struct GradientView {
  size_t parameter = 0;
  size_t offset = 0;
  size_t count = 0;
  // Empty where it was not given.
  Span<const int64_t> shape;
};

// A bucket of gradients, and nothing else: the reducer's own summaries do not go through a hook.
// The spans are valid until the next Layout().
struct BucketView {
  size_t index = 0;
  size_t bucket_count = 0;
  Buffer buffer;
  Span<const GradientView> gradients;
};

// The mean of the ranks' gradients, divided before it is summed.
struct PlainAverage {
  // Elements are cut to at most this, up and down, first.
  std::optional<double> limit;
  // The type in which they are then divided, sent and added up; none: their own.
  std::optional<DataType> travels_as;
};

// One reducer's. Layout(), Start() and the state are used by one thread at a time; Start() does not
// block. All ranks call Start() for all buckets of a layout, in the order of their indices, and
// until the last of these works is done nobody else uses the communicator.
class CommunicationHook {
 public:
  virtual ~CommunicationHook() = default;

  // The buckets of the steps that follow, while nothing runs. A hook keeps what it
  // remembers about a gradient by parameter, so that it survives. INVALID_ARGUMENT: a type or size
  // that the hook cannot work with.
  virtual Status Layout(Span<const BucketView> buckets) = 0;

  // The bucket holds this rank's own gradients; when the work is done, it holds what the optimizer
  // is to use. The hook also divides, by as much as it finds right.
  virtual std::shared_ptr<Work> Start(Communicator& communicator, const BucketView& bucket) = 0;

  // The memory of this rank between steps (residuals, factors, counters), while nothing runs. It
  // differs between ranks and belongs into each one's part of a checkpoint. Loading, before the
  // first step, what another kind of hook saved, or for other parameters: INVALID_ARGUMENT, then or
  // by Layout().
  virtual Result<std::string> SaveState() const = 0;
  virtual Status LoadState(std::string_view state) = 0;

  // Whether all ranks hold the same gradients afterwards, so that replicas stay equal.
  virtual bool KeepsReplicasEqual() const { return true; }

  // How many bytes this rank gave to collectives so far: what compression is measured by.
  virtual uint64_t bytes_given() const = 0;

  // What the hook comes to, where that is no more than an average and devices can do it by
  // themselves: gradients on them then do not go through the host's memory, and the hook is not
  // called for them.
  virtual std::optional<PlainAverage> plain_average() const { return std::nullopt; }

  // What must be the same on all ranks, for the line that says where it is not.
  virtual std::string DescribeOptions() const { return {}; }
};

}  // namespace cadre

#endif  // CADRE_COMMUNICATION_HOOK_H_
