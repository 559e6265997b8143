// What the records of one job change in it. For apply.cc alone. Pure.
#ifndef CADRE_RENDEZVOUS_STATE_APPLY_JOB_H_
#define CADRE_RENDEZVOUS_STATE_APPLY_JOB_H_

#include <cstdint>

#include "proto/record.pb.h"
#include "rendezvous/state/state.h"

namespace cadre::state {

// The job has not ended, and the record is not of its beginning or end.
void ApplyToJob(const v1::Record& record, Job* job);

// `ended`: its position in the order in which jobs ended.
void EndJob(const v1::JobEnded& record, uint64_t ended, Job* job);
// What an ended job was to be started with: nobody starts it again. It keeps what people are told
// of it, its first words among them.
void DropStart(Job* job);

}  // namespace cadre::state

#endif  // CADRE_RENDEZVOUS_STATE_APPLY_JOB_H_
