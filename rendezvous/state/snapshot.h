// A state as the shortest list of records that gives it again. Pure; one thread.
#ifndef CADRE_RENDEZVOUS_STATE_SNAPSHOT_H_
#define CADRE_RENDEZVOUS_STATE_SNAPSHOT_H_

#include <string>
#include <vector>

#include "proto/record.pb.h"
#include "rendezvous/state/state.h"

namespace cadre {

// Answers in one record; with kMaxValueBytes each, far from any limit of a message.
constexpr size_t kAnswersPerRecord = 256;

// Applied to an empty state they give `state`.
std::vector<v1::Record> SnapshotOf(const State& state);

// Each applies one of them.
void RestoreJob(const std::string& name, const v1::JobRestored& record, State* state);
void RestoreCluster(const v1::ClusterRestored& record, ClusterState* cluster);

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_STATE_SNAPSHOT_H_
