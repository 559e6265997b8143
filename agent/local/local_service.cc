#include "agent/local/local_service.h"

#include <iterator>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/version.h"
#include "rpc/frames/codec.h"

namespace cadre::agent {
namespace {

std::string FrameOf(const rpc::WorkerReply& reply) {
  std::string frame;
  frames::AppendMessage(reply, &frame);
  return frame;
}

std::string ThisAgent() {
  return absl::StrCat("this agent is of Cadre ", kVersion, ", which speaks version ",
                      rpc::kWorkerProtocol, " of the worker protocol");
}

absl::Status OtherProtocol(uint32_t theirs) {
  return absl::FailedPreconditionError(
      absl::StrCat(ThisAgent(), ", but the program's libcadre speaks version ", theirs,
                   ": use the same version of Cadre for both"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalService>> LocalService::Open(Options options) {
  ASSIGN_OR_RETURN(std::unique_ptr<LocalDirectory> directory,
                   options.directory.empty() ? LocalDirectory::Make(options.parent)
                                             : LocalDirectory::Adopt(options.directory));
  std::unique_ptr<LocalService> service(new LocalService(options, std::move(directory)));
  RETURN_IF_ERROR(service->Serve());
  return service;
}

LocalService::LocalService(const Options& options, std::unique_ptr<LocalDirectory> directory)
    : directory_(std::move(directory)),
      worker_calls_({options.job, options.address,
                     [this](uint64_t to, const rpc::WorkerReply& reply) { Send(to, reply); },
                     [this](AgentEvent event) { events_.push_back(std::move(event)); }}),
      store_calls_([this](uint64_t to, const rpc::WorkerReply& reply) { Send(to, reply); }) {}

absl::Status LocalService::Serve() {
  frames::FrameServer::Options options;
  options.token = directory_->token();
  options.max_frame_bytes = rpc::kWorkerFrameBytesMax;
  options.listener = directory_->listener();
  options.accept = [this](uint64_t) { return directory_->Accept(); };
  options.farewell = [](uint64_t, const absl::Status& why) {
    return FrameOf(rpc::ErrorReply(0, why));
  };
  options.on_frame = [this](uint64_t connection, absl::string_view content) {
    return OnFrame(connection, content);
  };
  options.on_end = [this](uint64_t connection) {
    worker_calls_.Forget(connection);
    store_calls_.Forget(connection);
  };
  ASSIGN_OR_RETURN(server_, frames::FrameServer::Make(std::move(options)));
  return absl::OkStatus();
}

absl::StatusOr<bool> LocalService::RestoreDirectory() {
  const int before = directory_->listener();
  ASSIGN_OR_RETURN(const bool restored, directory_->Restore());
  if (directory_->listener() != before) {
    RETURN_IF_ERROR(server_->ListenAt(directory_->listener()));
  }
  return restored;
}

std::vector<AgentEvent> LocalService::Read() {
  server_->Read();
  return std::exchange(events_, {});
}

absl::Status LocalService::OnFrame(uint64_t connection, absl::string_view content) {
  uint64_t id = 0;
  uint32_t protocol = rpc::kWorkerProtocol;
  if (rpc::HelloProtocol(content, &id, &protocol) && protocol != rpc::kWorkerProtocol) {
    Send(connection, rpc::ErrorReply(id, OtherProtocol(protocol)));
    return absl::OkStatus();
  }
  absl::StatusOr<rpc::WorkerCall> parsed = frames::ParseMessage<rpc::WorkerCall>(content);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(parsed.status().message(), "; ", ThisAgent()));
  }
  rpc::WorkerCall call = *std::move(parsed);
  if (auto* store = std::get_if<rpc::Store>(&call.what)) {
    std::optional<v1::StoreRequest> request =
        store_calls_.Take(connection, call.id, std::move(*store));
    if (request.has_value()) events_.push_back(StoreRequested{*std::move(request)});
    return absl::OkStatus();
  }
  std::visit(
      [&](const auto& what) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(what)>, rpc::Store>) {
          worker_calls_.OnCall(connection, call.id, what);
        }
      },
      call.what);
  return absl::OkStatus();
}

void LocalService::Send(uint64_t connection, const rpc::WorkerReply& reply) {
  server_->Answer(connection, FrameOf(reply));
}

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
                                           " is not this node's current generation, which is ",
                                           generation_));
  }
  const int64_t local = int64_t{from.rank} - assign_.first_rank();
  if (local < 0 || local >= assign_.local_world_size()) {
    return absl::NotFoundError(absl::StrCat("rank ", from.rank, " is not on this node, which has ",
                                            assign_.local_world_size(), " ranks from rank ",
                                            assign_.first_rank(), " on"));
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
  if (!is_first)
    Refuse(call->second, absl::AbortedError("a newer call of this worker replaced this one"));
  call->second = {connection, id, generation_};
}

void WorkerCalls::Refuse(const Waiting& call, const absl::Status& status) {
  options_.send(call.connection, rpc::ErrorReply(call.id, status));
}

void WorkerCalls::OnCall(uint64_t connection, uint64_t id, const rpc::Hello& call) {
  const absl::StatusOr<uint32_t> local_rank = LocalRank(call.from);
  if (!local_rank.ok()) return Refuse({connection, id}, local_rank.status());
  would_stand_by_ = would_stand_by_ || !in_place_;
  options_.send(connection, ReplyOf(id, PlaceOf(*local_rank)));
}

void WorkerCalls::OnCall(uint64_t connection, uint64_t id, const rpc::AwaitEnd& call) {
  const absl::StatusOr<uint32_t> local_rank = InPlaceRank(call.from);
  if (!local_rank.ok()) return Refuse({connection, id}, local_rank.status());
  if (ended_) return options_.send(connection, ReplyOf(id, rpc::GenerationEnd{reason_}));
  Wait({Kind::kAwaitEnd, *local_rank}, connection, id);
  options_.on_event(WorkerMayRejoin{generation_, *local_rank, true});
}

void WorkerCalls::OnCall(uint64_t connection, uint64_t id, const rpc::Rejoin& call) {
  const absl::StatusOr<uint32_t> local_rank = InPlaceRank(call.from);
  if (!local_rank.ok()) return Refuse({connection, id}, local_rank.status());
  Wait({Kind::kRejoin, *local_rank}, connection, id);
  // The reason goes to the server in a Protobuf message, which must be UTF-8.
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

namespace {

// Puts an operation into a request.
struct PutInto {
  v1::StoreRequest* request;

  void operator()(keyspace::Set& set) const {
    request->mutable_set()->set_key(std::move(set.key));
    request->mutable_set()->set_value(std::move(set.value));
  }
  void operator()(keyspace::Get& get) const { request->mutable_get()->set_key(std::move(get.key)); }
  void operator()(keyspace::Add& add) const {
    request->mutable_add()->set_key(std::move(add.key));
    request->mutable_add()->set_delta(add.delta);
  }
  void operator()(keyspace::CompareAndSet& swap) const {
    v1::CompareAndSetKey* message = request->mutable_compare_and_set();
    message->set_key(std::move(swap.key));
    message->set_expected(std::move(swap.expected));
    message->set_desired(std::move(swap.desired));
  }
  void operator()(keyspace::Delete& erase) const {
    request->mutable_delete_()->set_key(std::move(erase.key));
  }
  void operator()(keyspace::EnterBarrier& enter) const {
    request->mutable_barrier()->set_name(std::move(enter.name));
    request->mutable_barrier()->set_size(enter.size);
  }
  void operator()(keyspace::PublishId& publish) const {
    request->mutable_publish_id()->set_communicator(std::move(publish.communicator));
    request->mutable_publish_id()->set_id(std::move(publish.id));
  }
  void operator()(keyspace::GetId& get) const {
    request->mutable_get_id()->set_communicator(std::move(get.communicator));
  }
};

}  // namespace

std::optional<v1::StoreRequest> StoreCalls::Take(uint64_t connection, uint64_t id,
                                                 rpc::Store call) {
  // An older library does not check this, and a request that the server cannot parse would be
  // resent for ever.
  const absl::Status named = IsUtf8(call.job) ? keyspace::CheckName(call.operation)
                                              : absl::InvalidArgumentError("job is not UTF-8");
  if (!named.ok()) {
    send_(connection, rpc::ErrorReply(id, named));
    return std::nullopt;
  }
  if (waiting_.size() >= kMaxStoreCalls) {
    send_(connection, rpc::ErrorReply(id, absl::ResourceExhaustedError(absl::StrCat(
                                              "this agent already has ", kMaxStoreCalls,
                                              " store operations waiting; try again later"))));
    return std::nullopt;
  }
  waiting_.emplace(Key{call.client, id}, connection);
  v1::StoreRequest request;
  request.set_job(std::move(call.job));
  request.set_generation(call.generation);
  request.set_rank(call.rank);
  request.set_client(call.client);
  request.set_request_id(id);
  request.set_wait_ms(call.wait_ms);
  std::visit(PutInto{&request}, call.operation);
  return request;
}

void StoreCalls::Answer(const v1::StoreReply& reply) {
  const auto range = waiting_.equal_range({reply.client(), reply.request_id()});
  if (range.first == range.second) return;
  std::vector<uint64_t> askers;
  for (auto it = range.first; it != range.second; ++it) askers.push_back(it->second);
  waiting_.erase(range.first, range.second);
  const rpc::WorkerReply answer = {reply.request_id(), static_cast<absl::StatusCode>(reply.code()),
                                   reply.message(),
                                   rpc::StoreResult{reply.value(), reply.number()}};
  for (const uint64_t asker : askers) send_(asker, answer);
}

void StoreCalls::Forget(uint64_t connection) {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    it = it->second == connection ? waiting_.erase(it) : std::next(it);
  }
}

}  // namespace cadre::agent
