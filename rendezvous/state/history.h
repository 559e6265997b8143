// What is kept of a job's past: failures in short, and its timeline. For the files of apply.h
// alone. Pure.
#ifndef CADRE_RENDEZVOUS_STATE_HISTORY_H_
#define CADRE_RENDEZVOUS_STATE_HISTORY_H_

#include <cstdint>

#include "proto/failure.pb.h"
#include "proto/job.pb.h"
#include "proto/state.pb.h"
#include "rendezvous/state/state.h"

namespace cadre::state {

// A failure beside the root cause is kept without its bulk: a verdict goes to every node.
void AddEarlier(const v1::Failure& failure, Job* job);
void AddCollateral(const v1::Failure& failure, saved::GenerationStop* stop);

// Of the newest generation. Null: none has formed.
v1::GenerationTimeline* LastTimeline(Job* job);
// As timelines have it.
int64_t SinceCreated(const Job& job, int64_t at_us);

}  // namespace cadre::state

#endif  // CADRE_RENDEZVOUS_STATE_HISTORY_H_
