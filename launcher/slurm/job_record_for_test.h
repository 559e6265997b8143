// Jobs of a server for tests of Slurm's commands.
#ifndef CADRE_LAUNCHER_SLURM_JOB_RECORD_FOR_TEST_H_
#define CADRE_LAUNCHER_SLURM_JOB_RECORD_FOR_TEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "launcher/slurm/squeue_text.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"

namespace cadre::launcher {

// 2026-11-29 12:00:00 UTC.
inline absl::Time TestNow() { return absl::FromUnixSeconds(1795953600); }

inline TextSurroundings TestSurroundings() {
  return {TestNow(), absl::UTCTimeZone(), "",
          [](const std::string& user) -> std::optional<uint32_t> {
            return user == "ann" ? std::optional<uint32_t>(1000) : std::nullopt;
          }};
}

// A job of ann's that was submitted an hour ago.
inline v1::JobStatus TestJob(uint64_t id, const std::string& name, v1::JobPhase phase) {
  v1::JobStatus job;
  job.set_name(name);
  job.set_submission(id);
  job.set_user("ann");
  job.set_phase(phase);
  job.set_submitted_unix_ms(absl::ToUnixMillis(TestNow() - absl::Hours(1)));
  if (phase == v1::QUEUED) return job;
  job.set_began_unix_ms(absl::ToUnixMillis(TestNow() - absl::Minutes(30)));
  return job;
}

// The same with an end ten minutes ago.
inline v1::JobStatus EndedTestJob(uint64_t id, const std::string& name, v1::JobPhase outcome,
                                  v1::FailureCause cause = v1::FAILURE_CAUSE_UNSPECIFIED) {
  v1::JobStatus job = TestJob(id, name, outcome);
  job.set_ended_unix_ms(absl::ToUnixMillis(TestNow() - absl::Minutes(10)));
  job.mutable_verdict()->set_outcome(outcome);
  if (cause != v1::FAILURE_CAUSE_UNSPECIFIED) {
    job.mutable_verdict()->mutable_root_cause()->set_cause(cause);
  }
  return job;
}

// Gives the job a share of the node.
inline void GiveTestNode(const std::string& node, const std::string& job, uint32_t workers,
                         v1::ListNodesReply* nodes) {
  v1::ClusterNodeStatus* known = nullptr;
  for (v1::ClusterNodeStatus& one : *nodes->mutable_nodes()) {
    if (one.name() == node) known = &one;
  }
  if (known == nullptr) {
    known = nodes->add_nodes();
    known->set_name(node);
    known->set_cpus(8);
    known->set_connected(true);
  }
  int parts = 0;
  for (const v1::ClusterNodeStatus& one : nodes->nodes()) parts += one.parts_size();
  v1::Part* part = known->add_parts();
  part->set_id(parts + 1);
  part->set_job(job);
  part->set_node(node);
  part->set_workers(workers);
  part->set_cpus(workers * 2);
}

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SLURM_JOB_RECORD_FOR_TEST_H_
