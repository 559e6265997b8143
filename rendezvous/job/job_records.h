// Makers of those records of a job that say what became of its nodes and workers. The other records
// are made where they are committed: GenerationFormed, StopOrdered, GatheringBegan and JobEnded in
// generation.cc, WorkerRan and NodeImported in worker_reports.cc, JobCreated in jobs.cc. What each
// record changes is in rendezvous/state/apply.cc. Pure.
#ifndef CADRE_RENDEZVOUS_JOB_JOB_RECORDS_H_
#define CADRE_RENDEZVOUS_JOB_JOB_RECORDS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "base/time.h"
#include "proto/failure.pb.h"
#include "proto/record.pb.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/state/state.h"

namespace cadre::job {

// Returns the record of the node's Join, without its time.
v1::Record NodeAdmitted(const state::Job& job, const v1::NodeMessage& message);

v1::Record NodeRemoved(const std::string& node, v1::FailureCause cause, v1::NodeRemoved::How how,
                       const std::string& reason);

// Returns the record of a worker's end. No failure means success.
v1::Record WorkerEnded(const state::Job& job, uint32_t rank,
                       const std::optional<v1::Failure>& failure, MonoTime at);

// Returns the record that no worker of the generation is left on the node. `generation` is 0 if it
// was another server's.
v1::Record NodeCleared(const std::string& node, uint64_t generation, uint32_t held_port,
                       MonoTime at);

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_JOB_RECORDS_H_
