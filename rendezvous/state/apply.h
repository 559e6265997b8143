// The only mutator of durable state: live and on replay. Deterministic; any sequence of records
// that Step produced is accepted, a record that fits nothing is ignored.
#ifndef CADRE_RENDEZVOUS_STATE_APPLY_H_
#define CADRE_RENDEZVOUS_STATE_APPLY_H_

#include <string>

#include "proto/record.pb.h"
#include "rendezvous/state/state.h"

namespace cadre::state {

// Returns the name of an ended job that is forgotten from now on; mostly empty.
std::string Apply(const v1::Record& record, State* state);

}  // namespace cadre::state

#endif  // CADRE_RENDEZVOUS_STATE_APPLY_H_
