// What people are shown of a job: its status, and what it does and waits for. Pure.
#ifndef CADRE_RENDEZVOUS_JOB_STATUS_H_
#define CADRE_RENDEZVOUS_JOB_STATUS_H_

#include <string>

#include "base/time.h"
#include "proto/job.pb.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/job/generation.h"
#include "rendezvous/state/state.h"

namespace cadre::job {

// How much of a job is shown: what its agents are sent; that and what a list of jobs has; that and
// its workers and timeline.
enum class StatusDetail { kForAgents, kInList, kFull };
// `cluster_waits` is the text that ClusterWaits returns; `at` is host time.
v1::JobStatus StatusOf(const std::string& name, const JobView& view,
                       const std::string& cluster_waits, MonoTime at, StatusDetail shown);

// Returns in one line what the job waits for and until when, or what it does.
std::string Explain(const JobView& view, const std::string& cluster_waits, MonoTime at);

// Returns what the job waits for, with the time left; empty if nothing. `at` is now() of the lease
// clock.
std::string WaitingFor(const JobView& view, const std::string& cluster_waits, MonoTime at);

// Returns "1 of 2 nodes joined within 10m: missing 1 (joined: a)", with names if they are known.
std::string JoinTimeoutText(const JobView& view, const std::string& cluster_waits);

// Returns the first three ranks that have not started, and a count.
std::string RanksNotStarted(const state::Generation& generation);

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_STATUS_H_
