#include "agent/local/worker_calls.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"

namespace cadre::agent {
namespace {

absl::Status NotKept() {
  return absl::AbortedError("the generation is over, and this process is not kept: exit");
}

rpc::WorkerReply ReplyOf(uint64_t id, decltype(rpc::WorkerReply::what) what) {
  return {id, absl::StatusCode::kOk, "", std::move(what)};
}

}  // namespace

void WorkerCalls::Begin(uint64_t generation, const v1::Assign& assign, bool in_place,
                        const std::set<uint32_t>& kept) {
  generation_ = generation;
  assign_ = assign;
  in_place_ = in_place;
  ended_ = false;
  would_stand_by_ = false;
  kept_.clear();
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    const auto [kind, number] = it->first;
    const Waiting call = it->second;
    it = waiting_.erase(it);
    if (kind == Kind::kRejoin && kept.count(number) != 0) {
      options_.send(call.connection, ReplyOf(call.id, PlaceOf(number)));
    } else {
      Refuse(call, NotKept());
    }
  }
}

void WorkerCalls::End(const std::set<uint32_t>& kept, const std::string& reason) {
  ended_ = true;
  kept_ = kept;
  reason_ = reason;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    const auto [kind, number] = it->first;
    const bool is_kept = kept.count(number) != 0;
    if (is_kept && kind == Kind::kRejoin) {
      ++it;
      continue;
    }
    const Waiting call = it->second;
    it = waiting_.erase(it);
    if (is_kept) {
      options_.send(call.connection, ReplyOf(call.id, rpc::GenerationEnd{reason}));
    } else {
      Refuse(call, NotKept());
    }
  }
}

absl::StatusOr<uint32_t> WorkerCalls::LocalRank(const rpc::Caller& from) const {
  if (from.generation != generation_) {
    return absl::AbortedError(absl::StrCat("generation ", from.generation,
                                           " is not the current one of this node: that is ",
                                           generation_));
  }
  const int64_t local = int64_t{from.rank} - assign_.first_rank();
  if (local < 0 || local >= assign_.local_world_size()) {
    return absl::NotFoundError(absl::StrCat("rank ", from.rank, " is not on this node, which has ",
                                            assign_.local_world_size(), " from ",
                                            assign_.first_rank()));
  }
  return static_cast<uint32_t>(local);
}

absl::StatusOr<uint32_t> WorkerCalls::InPlaceRank(const rpc::Caller& from) const {
  ASSIGN_OR_RETURN(const uint32_t local_rank, LocalRank(from));
  if (!in_place_) {
    return absl::FailedPreconditionError("this job does not recover in place; give --in-place");
  }
  if (ended_ && kept_.count(local_rank) == 0) return NotKept();
  return local_rank;
}

rpc::Place WorkerCalls::PlaceOf(uint32_t local_rank) const {
  rpc::Place place;
  place.job = options_.job;
  place.generation = generation_;
  place.rank = assign_.first_rank() + local_rank;
  place.local_rank = local_rank;
  place.node_rank = assign_.node_rank();
  place.world_size = assign_.world_size();
  place.local_world_size = assign_.local_world_size();
  place.nodes = assign_.nodes();
  place.restart_count = assign_.restart_count();
  place.address = options_.address;
  place.in_place = in_place_;
  return place;
}

void WorkerCalls::Wait(Key key, uint64_t connection, uint64_t id) {
  would_stand_by_ = true;
  const auto [call, is_first] = waiting_.try_emplace(key);
  if (!is_first) Refuse(call->second, absl::AbortedError("this worker called again"));
  call->second = {connection, id, generation_};
}

void WorkerCalls::Refuse(const Waiting& call, const absl::Status& status) {
  options_.send(call.connection, rpc::ErrorReply(call.id, status));
}

void WorkerCalls::On(uint64_t connection, uint64_t id, const rpc::Hello& call) {
  const absl::StatusOr<uint32_t> local_rank = LocalRank(call.from);
  if (!local_rank.ok()) return Refuse({connection, id}, local_rank.status());
  would_stand_by_ = would_stand_by_ || !in_place_;
  options_.send(connection, ReplyOf(id, PlaceOf(*local_rank)));
}

void WorkerCalls::On(uint64_t connection, uint64_t id, const rpc::AwaitEnd& call) {
  const absl::StatusOr<uint32_t> local_rank = InPlaceRank(call.from);
  if (!local_rank.ok()) return Refuse({connection, id}, local_rank.status());
  if (ended_) return options_.send(connection, ReplyOf(id, rpc::GenerationEnd{reason_}));
  Wait({Kind::kAwaitEnd, *local_rank}, connection, id);
  options_.on_event(WorkerMayRejoin{generation_, *local_rank, true});
}

void WorkerCalls::On(uint64_t connection, uint64_t id, const rpc::Rejoin& call) {
  const absl::StatusOr<uint32_t> local_rank = InPlaceRank(call.from);
  if (!local_rank.ok()) return Refuse({connection, id}, local_rank.status());
  Wait({Kind::kRejoin, *local_rank}, connection, id);
  // It goes on to the server in a message of Protobuf's.
  options_.on_event(WorkerWaits{generation_, *local_rank, ReplaceInvalidUtf8(call.reason)});
}

void WorkerCalls::Forget(uint64_t connection) {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (it->second.connection != connection) {
      ++it;
      continue;
    }
    const Key key = it->first;
    const uint64_t generation = it->second.generation;
    it = waiting_.erase(it);
    if (key.first == Kind::kAwaitEnd) {
      options_.on_event(WorkerMayRejoin{generation, key.second, false});
    }
  }
}

}  // namespace cadre::agent
