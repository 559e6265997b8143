// The only mutator of durable state: live and on replay. Deterministic; any sequence of records
// that Step produced is accepted, a record that fits nothing is ignored.
#ifndef CADRE_RENDEZVOUS_STATE_APPLY_H_
#define CADRE_RENDEZVOUS_STATE_APPLY_H_

#include <string>

#include "proto/record.pb.h"
#include "rendezvous/state/state.h"

namespace cadre {

// Ended jobs that are remembered; the oldest of the user who has most goes first.
constexpr size_t kMaxEndedJobs = 1000;
constexpr int kMaxCollateral = 16;
constexpr int kMaxEarlier = 64;
constexpr int kMaxTimeline = 256;
// Ranks of which a failure says where they were.
constexpr int kMaxEvidence = 64;

// Returns the name of an ended job that is forgotten from now on; mostly empty.
std::string ApplyRecord(const v1::Record& record, State* state);

// Equal texts, equal states.
std::string DumpState(const State& state);

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_STATE_APPLY_H_
