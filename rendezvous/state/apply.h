// Apply() is the only function that changes durable state, live and on replay. It is deterministic,
// accepts any sequence of records that Step() produced, and ignores a record that does not fit.
#ifndef CADRE_RENDEZVOUS_STATE_APPLY_H_
#define CADRE_RENDEZVOUS_STATE_APPLY_H_

#include <string>

#include "proto/record.pb.h"
#include "rendezvous/state/state.h"

namespace cadre::state {

// Returns the name of the ended job that it dropped from the state (see kMaxEndedJobs); usually
// empty.
std::string Apply(const v1::Record& record, State* state);

}  // namespace cadre::state

#endif  // CADRE_RENDEZVOUS_STATE_APPLY_H_
