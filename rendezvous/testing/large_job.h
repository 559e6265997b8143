// The core with one job of very many ranks, in simulated time: what its nodes say, without them.
// For tests and benchmarks; one thread.
#ifndef CADRE_RENDEZVOUS_TESTING_LARGE_JOB_H_
#define CADRE_RENDEZVOUS_TESTING_LARGE_JOB_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/time.h"
#include "rendezvous/core/core.h"

namespace cadre {

// The nodes of an elastic job that may lose one of them. Renewals are left out: no step takes
// longer than a lease in simulated time.
class LargeJob {
 public:
  LargeJob(uint32_t nodes, uint32_t slots);

  // The steps of a story, in this order.
  // All nodes come, one after the other; the last one completes the generation.
  void Join();
  // Every node of the generation reports each of its workers.
  void StartWorkers();
  // Its connection ends and does not come back.
  void LoseNode(uint32_t node);
  // Those who were told to stop report that they have; the last one completes the next generation.
  void StopWorkers();
  // Every worker exits with 0.
  void Succeed();

  v1::JobStatus Status() const { return *core_.Status(now_, kName); }
  const Core& core() const { return core_; }
  // What this node was assigned last; unset when it was not in the last generation.
  const std::optional<v1::Assign>& assigned(uint32_t node) const { return assigned_[node]; }
  // Sent to nodes so far.
  size_t messages() const { return messages_; }
  const std::vector<v1::Record>& records() const { return records_; }

 private:
  static constexpr char kName[] = "large";

  void Step(const Event& event);
  void Say(uint32_t node, const v1::NodeMessage& message);
  // Lets time pass as a host does that is never late.
  void Pass(absl::Duration duration);

  const uint32_t slots_;
  const v1::JobSpec spec_;
  Core core_{CoreConfig()};
  MonoTime now_ = MonoTime::FromMicros(1000000);
  uint64_t generation_ = 0;
  std::vector<std::optional<v1::Assign>> assigned_;
  // Told to stop, and not yet reported.
  std::vector<uint32_t> stopping_;
  size_t messages_ = 0;
  std::vector<v1::Record> records_;
};

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_TESTING_LARGE_JOB_H_
