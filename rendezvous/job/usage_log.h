// How busy the nodes of a job are, over time. Bounded, and not durable: it is for people. Pure; one
// thread.
#ifndef CADRE_RENDEZVOUS_JOB_USAGE_LOG_H_
#define CADRE_RENDEZVOUS_JOB_USAGE_LOG_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "proto/job.pb.h"

namespace cadre::job {

// Of one node between two samples at first; doubles whenever a node's samples are full, or those of
// all nodes together, and every other one goes.
constexpr int64_t kFirstUsageIntervalUs = 10000000;
// An hour of one node; of 24 bytes each.
constexpr int kMaxUsageSamples = 360;
constexpr size_t kMaxUsageSamplesOfJob = 16384;
constexpr size_t kMaxUsageSamplesOfEnded = 2048;
// Of a larger job the other nodes have none.
constexpr size_t kMaxNodesWithUsage = 1024;

class UsageLog {
 public:
  // What the node says, at that time since the job was created.
  void Note(const std::string& node, const v1::NodeUsage& usage, int64_t at_us);

  // The job is over: what stays of it is to be small, because many jobs are remembered.
  void End();
  // By the names of the nodes.
  v1::JobUsage All() const;

 private:
  void Thin();

  std::map<std::string, v1::NodeUsageHistory> nodes_;
  size_t samples_ = 0;
  int64_t interval_us_ = kFirstUsageIntervalUs;
};

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_USAGE_LOG_H_
