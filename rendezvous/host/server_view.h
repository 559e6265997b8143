// A snapshot of a server that leads. Plain values.
#ifndef CADRE_RENDEZVOUS_HOST_SERVER_VIEW_H_
#define CADRE_RENDEZVOUS_HOST_SERVER_VIEW_H_

#include <cstddef>
#include <vector>

#include "proto/job.pb.h"
#include "rendezvous/web/counters.h"

namespace cadre::host {

struct ServerView {
  web::Counters counters;
  // All jobs that it knows, ended ones included, without timelines.
  std::vector<v1::JobStatus> jobs;
  // Open streams, one per node, and store calls that wait for an answer.
  size_t streams = 0;
  size_t calls = 0;
  // Events that were queued for the core when the view was requested.
  size_t queued_events = 0;
  size_t queued_bytes = 0;
  // Whether the state can be saved.
  bool saves = true;
};

inline bool IsLive(const v1::JobStatus& job) {
  return job.phase() != v1::SUCCEEDED && job.phase() != v1::FAILED &&
         job.phase() != v1::CANCELLED_PHASE;
}

}  // namespace cadre::host

#endif  // CADRE_RENDEZVOUS_HOST_SERVER_VIEW_H_
