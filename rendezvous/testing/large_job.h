// The core with one job of very many ranks, in simulated time, with the messages of simulated
// nodes. For tests and benchmarks; one thread.
#ifndef CADRE_RENDEZVOUS_TESTING_LARGE_JOB_H_
#define CADRE_RENDEZVOUS_TESTING_LARGE_JOB_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/time.h"
#include "rendezvous/core/core.h"

namespace cadre {

// An elastic job that may lose one node. Nodes do not renew their leases, because no step takes
// longer than a lease in simulated time.
class LargeJob {
 public:
  LargeJob(uint32_t nodes, uint32_t slots);

  // The steps of a scenario, in this order.
  // All nodes join, one after the other; the last one completes the generation.
  void Join();
  // Every node of the generation reports each of its workers.
  void StartWorkers();
  // The node's connection ends and does not come back.
  void LoseNode(uint32_t node);
  // The nodes that were told to stop report that they have; the last one completes the next
  // generation.
  void StopWorkers();
  // Every worker exits with 0.
  void Succeed();

  v1::JobStatus Status() const { return *core_.Status(now_, kName); }
  const Core& core() const { return core_; }
  // The last assignment of this node; nullopt if it was not in the last generation.
  const std::optional<v1::Assign>& assigned(uint32_t node) const { return assigned_[node]; }
  // Messages sent to nodes so far.
  size_t messages() const { return messages_; }
  const std::vector<v1::Record>& records() const { return records_; }

 private:
  static constexpr char kName[] = "large";

  void Step(const Event& event);
  void Send(uint32_t node, const v1::NodeMessage& message);
  // Lets time pass as on a host that is never late.
  void Pass(absl::Duration duration);

  const uint32_t slots_;
  const v1::JobSpec spec_;
  Core core_{CoreConfig()};
  MonoTime now_ = MonoTime::FromMicros(1000000);
  uint64_t generation_ = 0;
  std::vector<std::optional<v1::Assign>> assigned_;
  // Nodes that were told to stop and have not reported yet.
  std::vector<uint32_t> stopping_;
  size_t messages_ = 0;
  std::vector<v1::Record> records_;
};

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_TESTING_LARGE_JOB_H_
