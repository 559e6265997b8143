// What people are told of a job: its status, and what it does and waits for. Pure.
#ifndef CADRE_RENDEZVOUS_JOB_STATUS_H_
#define CADRE_RENDEZVOUS_JOB_STATUS_H_

#include <string>

#include "base/time.h"
#include "proto/job.pb.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/job/deadlines.h"
#include "rendezvous/state/state.h"

namespace cadre::job {

// How much of a job is shown: what its agents are told; with what a list of jobs has; with its
// workers and its timeline.
enum class Shown { kToAgents, kInList, kWhole };
// `cluster_waits`: as ClusterWaits says it. `at`: on the host's clock.
v1::JobStatus StatusOf(const std::string& name, const View& view, const std::string& cluster_waits,
                       MonoTime at, Shown shown);

// What the job waits for and until when, or what it does; one line.
std::string Explain(const View& view, const std::string& cluster_waits, MonoTime at);

// What it waits for in words, until when included; empty: nothing. `at`: on the lease clock.
std::string WaitingFor(const View& view, const std::string& cluster_waits, MonoTime at);

// "1 of 2 nodes came within 10m: missing 1 (here: a)", with names where they are known.
std::string JoinTimeoutText(const View& view, const std::string& cluster_waits);

// The first three and a count.
std::string RanksNotStarted(const state::Generation& generation);

// The job has ended: what its nodes are told.
v1::ServerMessage FinishedMessage(const std::string& name, const View& view);

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_STATUS_H_
