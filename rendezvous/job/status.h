// What people are told of a job. Pure.
#ifndef CADRE_RENDEZVOUS_JOB_STATUS_H_
#define CADRE_RENDEZVOUS_JOB_STATUS_H_

#include <string>

#include "base/time.h"
#include "proto/job.pb.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/job/deadlines.h"
#include "rendezvous/job/report.h"

namespace cadre::job {

// `cluster_waits`: as ClusterWaits says it. `at`: on the host's clock.
v1::JobStatus StatusOf(const std::string& name, const View& view, const std::string& cluster_waits,
                       MonoTime at, Shown shown);

// What the job waits for and until when, or what it does; one line.
std::string Explain(const View& view, const std::string& cluster_waits, MonoTime at);

// The job has ended: what its nodes are told.
v1::ServerMessage FinishedMessage(const std::string& name, const View& view);

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_STATUS_H_
