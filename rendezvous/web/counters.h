// Counts the core's events and records, for /metrics. Pure; one thread.
#ifndef CADRE_RENDEZVOUS_WEB_COUNTERS_H_
#define CADRE_RENDEZVOUS_WEB_COUNTERS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/failure.pb.h"
#include "proto/job.pb.h"
#include "proto/record.pb.h"
#include "rendezvous/core/core_event.h"

namespace cadre::web {

struct Histogram {
  // Upper bounds, ascending; larger values are counted in `count` alone.
  explicit Histogram(std::vector<double> bounds);
  void Observe(double value);

  std::vector<double> bounds;
  // For each bound; not cumulative.
  std::vector<uint64_t> in_bucket;
  uint64_t count = 0;
  double sum = 0;
};

class Counters {
 public:
  void Count(const Event& event);
  void Count(const v1::Record& record);
  void CountCommit(absl::Duration took);

  // By v1::NodeMessage::BodyCase and v1::StoreRequest::OperationCase.
  const std::map<int, uint64_t>& node_messages() const { return node_messages_; }
  const std::map<int, uint64_t>& store_operations() const { return store_operations_; }
  uint64_t generations() const { return generations_; }
  // Generations that a failure ended, and restarts that used a restart budget, by root cause.
  const std::map<v1::FailureCause, uint64_t>& failures() const { return failures_; }
  const std::map<v1::FailureCause, uint64_t>& restarts() const { return restarts_; }
  const std::map<v1::JobPhase, uint64_t>& jobs_ended() const { return jobs_ended_; }
  // Seconds from the stop order that a failure caused until all workers of the next generation run.
  const Histogram& recoveries() const { return recoveries_; }
  // Seconds to save one batch of records.
  const Histogram& commits() const { return commits_; }

 private:
  // A job whose generation has failed, until the next generation runs or the job ends.
  struct Recovering {
    uint64_t failed_generation = 0;
    v1::FailureCause cause = v1::FAILURE_CAUSE_UNSPECIFIED;
    int64_t failed_us = 0;
    // The cause is final and counted in failures_.
    bool counted = false;
    uint64_t next_generation = 0;
    // By rank of the next generation, and the number of true elements.
    std::vector<bool> started;
    size_t number_started = 0;
  };
  void CountStop(const std::string& job, const v1::StopOrdered& record);
  void CountStarted(const std::string& job, uint64_t generation, uint32_t rank, int64_t at_us);

  std::map<int, uint64_t> node_messages_;
  std::map<int, uint64_t> store_operations_;
  uint64_t generations_ = 0;
  std::map<v1::FailureCause, uint64_t> failures_;
  std::map<v1::FailureCause, uint64_t> restarts_;
  std::map<v1::JobPhase, uint64_t> jobs_ended_;
  Histogram recoveries_{{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}};
  Histogram commits_{{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5}};
  std::map<std::string, Recovering> recovering_;
};

}  // namespace cadre::web

#endif  // CADRE_RENDEZVOUS_WEB_COUNTERS_H_
