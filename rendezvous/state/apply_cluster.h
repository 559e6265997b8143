// What the records of the cluster's nodes and parts change. For apply.cc alone. Pure.
#ifndef CADRE_RENDEZVOUS_STATE_APPLY_CLUSTER_H_
#define CADRE_RENDEZVOUS_STATE_APPLY_CLUSTER_H_

#include <cstdint>

#include "proto/record.pb.h"
#include "rendezvous/state/state.h"

namespace cadre::state {

// Whether the record is of the cluster and not of one job.
bool ApplyToCluster(const v1::Record& record, State* state);

// The part's launcher is in its job. 0: it was no part's.
void MarkJoined(uint64_t part, Cluster* cluster);

}  // namespace cadre::state

#endif  // CADRE_RENDEZVOUS_STATE_APPLY_CLUSTER_H_
