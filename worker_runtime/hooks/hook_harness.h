// For tests of hooks: ranks as threads of one process, and steps with reproducible gradients.
#ifndef CADRE_WORKER_RUNTIME_HOOKS_HOOK_HARNESS_H_
#define CADRE_WORKER_RUNTIME_HOOKS_HOOK_HARNESS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/time/time.h"
#include "cadre/communication_hook.h"
#include "cadre/status.h"
#include "worker_runtime/reduce/gradient_buckets.h"

namespace cadre::hooks {

inline constexpr std::chrono::nanoseconds kHookTestTimeout = std::chrono::seconds(60);

// Runs `body` on every rank, each with a communicator; returns when all are done.
void WithRanks(int ranks, const std::function<void(Communicator&)>& body);

// Element i of a gradient: approximately normally distributed, and a pure function of the
// arguments.
float GradientValue(int rank, int step, size_t parameter, size_t i);

using Shapes = std::vector<std::vector<int64_t>>;
size_t CountOf(const std::vector<int64_t>& shape);

// One rank's float32 gradients, in buckets.
class TestGradients {
 public:
  TestGradients(Shapes shapes, std::vector<reduce::Bucket> assignment);

  std::vector<BucketView> views() const;
  std::vector<float>& bucket(size_t b) { return values_[b]; }
  // A copy.
  std::vector<float> Get(size_t parameter) const;
  std::vector<std::vector<float>> GetAll() const;
  void Set(size_t parameter, const std::vector<float>& values);
  // Writes GradientValue() everywhere.
  void Fill(int rank, int step);

 private:
  const Shapes shapes_;
  std::vector<std::vector<float>> values_;
  std::vector<std::vector<GradientView>> gradients_;
};

// Starts the hook for all buckets and waits for all of them.
Status ReduceAll(CommunicationHook& hook, Communicator& communicator,
                 const TestGradients& gradients);

}  // namespace cadre::hooks

#endif  // CADRE_WORKER_RUNTIME_HOOKS_HOOK_HARNESS_H_
