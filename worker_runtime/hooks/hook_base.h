// What communication hooks have in common: the thread on which they run, the conversion of buckets
// to floats, and their state in a checkpoint.
#ifndef CADRE_WORKER_RUNTIME_HOOKS_HOOK_BASE_H_
#define CADRE_WORKER_RUNTIME_HOOKS_HOOK_BASE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "cadre/communication_hook.h"
#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/span.h"
#include "cadre/status.h"
#include "worker_runtime/backend/operation_thread.h"

namespace cadre::hooks {

// The thread on which a hook's steps run, so that they do not block the thread that computes
// gradients: one bucket after the other, so that all ranks make the same collectives in the same
// order.
//
// Thread safe; the collectives must be called only by operations that run here. A hook declares it
// as its last member, so that it stops before the memory that its operations use is freed.
class HookThread {
 public:
  // Never blocks. After one operation failed, all later ones fail with its status.
  std::shared_ptr<Work> Start(backend::OperationThread::Operation operation) {
    return thread_.Enqueue(std::move(operation));
  }

  // These wait until the collective is done.
  Status AllReduce(Communicator& communicator, Buffer buffer, ReduceOp op);
  // Sums floats, which are sent as elements of `wire` (float32 or a 16-bit type).
  Status SumFloats(Communicator& communicator, float* values, size_t count, DataType wire);
  Status AllGather(Communicator& communicator, Buffer input, Buffer output);
  Status Broadcast(Communicator& communicator, Buffer buffer, int root);
  // Waits for a work of another hook.
  Status Wait(Communicator& communicator, const std::shared_ptr<Work>& work);

  uint64_t bytes_given() const { return bytes_given_; }

 private:
  std::atomic<uint64_t> bytes_given_{0};
  backend::OperationThread thread_;
};

// Converts a bucket's gradients to floats, whatever type the bucket has. Pure.

// INVALID_ARGUMENT, naming `hook` and the bucket: its type is not float32, float16 or bfloat16, or
// it has more than 2^31 - 1 elements.
Status CheckFloatBuckets(absl::string_view hook, Span<const BucketView> buckets);

std::vector<float> LoadFloats(const Buffer& buffer);
void StoreFloats(Span<const float> values, const Buffer& buffer);

// A hook's state as bytes for a checkpoint: the hook's name, numbers, and floats by parameter.
// Little-endian. Pure.

// Floats for some of the parameters.
using FloatsByParameter = std::map<size_t, std::vector<float>>;

// The floats of this gradient; created as zeros if there are none.
std::vector<float>& Of(FloatsByParameter& floats, const GradientView& gradient);

// INVALID_ARGUMENT, naming the gradient: it has another number of elements.
Status CheckSizes(const FloatsByParameter& floats, Span<const BucketView> buckets);

class HookStateWriter {
 public:
  explicit HookStateWriter(std::string_view hook);
  void Put(uint64_t number);
  void Put(const FloatsByParameter& floats);
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// `state` must live as long as this. All errors are INVALID_ARGUMENT.
class HookStateReader {
 public:
  explicit HookStateReader(std::string_view state) : rest_(state) {}
  // Called first: checks that this hook wrote the state.
  Status Expect(std::string_view hook);
  Result<uint64_t> Number();
  Result<FloatsByParameter> Floats();
  // Called last: checks that nothing is left.
  Status End() const;

 private:
  std::string_view rest_;
};

}  // namespace cadre::hooks

#endif  // CADRE_WORKER_RUNTIME_HOOKS_HOOK_BASE_H_
