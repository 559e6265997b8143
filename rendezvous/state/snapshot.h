// The state as it is saved. Pure; one thread.
#ifndef CADRE_RENDEZVOUS_STATE_SNAPSHOT_H_
#define CADRE_RENDEZVOUS_STATE_SNAPSHOT_H_

#include <functional>
#include <string>
#include <vector>

#include "proto/record.pb.h"
#include "rendezvous/state/state.h"

namespace cadre::state {

// Answers in one record; with kMaxValueBytes each, far from any limit of a message.
constexpr size_t kAnswersPerRecord = 256;

// The shortest list of records that gives `state` when applied to an empty one: its pieces, and the
// keys of each job behind it.
std::vector<v1::Record> SnapshotOf(const State& state);
// The same, one by one.
void ForEachOfSnapshot(const State& state, const std::function<void(v1::Record)>& take);

// All of it, with what is derived: equal texts, equal states.
std::string TextOf(const State& state);

}  // namespace cadre::state

#endif  // CADRE_RENDEZVOUS_STATE_SNAPSHOT_H_
