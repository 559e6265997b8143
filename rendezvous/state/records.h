// Converts the state, and the changes in the stores of jobs, to records and back; and the requests
// and replies of stores to protos and back. Pure; one thread.
#ifndef CADRE_RENDEZVOUS_STATE_RECORDS_H_
#define CADRE_RENDEZVOUS_STATE_RECORDS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "proto/record.pb.h"
#include "proto/store.pb.h"
#include "rendezvous/keyspace/store_content.h"
#include "rendezvous/keyspace/store_request.h"
#include "rendezvous/state/state.h"

namespace cadre::state {

// How many store replies one record holds; with kMaxValueBytes each, far below any limit of a
// message.
constexpr size_t kAnswersPerRecord = 256;

// Returns the shortest list of records that gives `state` when applied to an empty one: a piece for
// the cluster, and for each job a piece followed by its keys.
std::vector<v1::Record> SnapshotOf(const State& state);
// Passes the same records to `take` one by one.
void ForEachOfSnapshot(const State& state, const std::function<void(v1::Record)>& take);

// Returns the whole state, with derived values, as text. States are equal if their texts are.
std::string TextOf(const State& state);

// Returns the record of a change in one generation. The record's job is not set.
v1::Record RecordOf(uint64_t generation, keyspace::Change change);
// Returns the change that a record of a store holds.
keyspace::Change ChangeOf(const v1::Record& record);
// Returns the generation of a store's record, or nullopt for any other record.
std::optional<uint64_t> GenerationOfChange(const v1::Record& record);

v1::StoreReply ToProto(const keyspace::Reply& reply);
keyspace::Reply FromProto(const v1::StoreReply& reply);
// Returns nullopt if the request holds no operation.
std::optional<keyspace::Request> FromProto(const v1::StoreRequest& request);

}  // namespace cadre::state

#endif  // CADRE_RENDEZVOUS_STATE_RECORDS_H_
