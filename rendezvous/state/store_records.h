// A store's changes as the records that keep them, and its requests and answers as they travel.
// Pure.
#ifndef CADRE_RENDEZVOUS_STATE_STORE_RECORDS_H_
#define CADRE_RENDEZVOUS_STATE_STORE_RECORDS_H_

#include <cstdint>
#include <optional>

#include "proto/record.pb.h"
#include "proto/store.pb.h"
#include "rendezvous/keyspace/request.h"
#include "rendezvous/keyspace/stored.h"

namespace cadre::state {

// Of one generation; the record's job is not set.
v1::Record RecordOf(uint64_t generation, keyspace::Change change);
// The change that a record of the store keeps.
keyspace::Change ChangeOf(const v1::Record& record);
// The generation that such a record belongs to; nullopt: it is a record of something else.
std::optional<uint64_t> GenerationOfChange(const v1::Record& record);

v1::StoreReply ToProto(const keyspace::Reply& reply);
keyspace::Reply FromProto(const v1::StoreReply& reply);
// nullopt: it holds no operation.
std::optional<keyspace::Request> FromProto(const v1::StoreRequest& request);

}  // namespace cadre::state

#endif  // CADRE_RENDEZVOUS_STATE_STORE_RECORDS_H_
