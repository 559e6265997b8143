#include "agent/local/worker_calls.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/token.h"

namespace cadre {
namespace {

constexpr char kTokenMetadata[] = "cadre-token";

grpc::Status NotKept() {
  return grpc::Status(grpc::StatusCode::ABORTED,
                      "the generation is over, and this process is not kept: exit");
}

}  // namespace

bool KnowsToken(const grpc::CallbackServerContext& context, const std::string& token) {
  const auto found = context.client_metadata().find(kTokenMetadata);
  return found != context.client_metadata().end() &&
         EqualConstantTime(absl::string_view(found->second.data(), found->second.size()), token);
}

grpc::Status WrongToken() {
  return grpc::Status(grpc::StatusCode::UNAUTHENTICATED,
                      "the token is missing or wrong: send the content of CADRE_TOKEN_FILE");
}

class WorkerCalls::Call final : public grpc::ServerUnaryReactor {
 public:
  Call(WorkerCalls& service, v1::GenerationEnd* reply)
      : service_(service), kind_(Kind::kAwaitEnd), end_(reply) {}
  Call(WorkerCalls& service, const std::string& reason, v1::HelloReply* reply)
      : service_(service), kind_(Kind::kRejoin), reason_(reason), place_(reply) {}
  Call(WorkerCalls& service, uint64_t standby, v1::HelloReply* reply)
      : service_(service), kind_(Kind::kStandby), standby_(standby), place_(reply) {}

  void OnCancel() override { service_.Dropped(this); }
  void OnDone() override { delete this; }

  void At(uint64_t generation, uint32_t local_rank) {
    generation_ = generation;
    local_rank_ = local_rank;
  }
  Key key() const { return {kind_, kind_ == Kind::kStandby ? standby_ : local_rank_}; }
  Kind kind() const { return kind_; }
  uint64_t generation() const { return generation_; }
  uint32_t local_rank() const { return local_rank_; }
  const std::string& reason() const { return reason_; }
  v1::GenerationEnd* end() const { return end_; }
  v1::HelloReply* place() const { return place_; }

 private:
  WorkerCalls& service_;
  const Kind kind_;
  const std::string reason_;
  const uint64_t standby_ = 0;
  uint64_t generation_ = 0;
  uint32_t local_rank_ = 0;
  v1::GenerationEnd* const end_ = nullptr;
  v1::HelloReply* const place_ = nullptr;
};

void WorkerCalls::FinishEach(const std::vector<Finished>& finished) {
  for (const Finished& one : finished) one.call->Finish(one.status);
}

WorkerCalls::Call* WorkerCalls::Take(const Key& key) {
  const auto found = waiting_.find(key);
  if (found == waiting_.end()) return nullptr;
  Call* call = found->second;
  waiting_.erase(found);
  return call;
}

void WorkerCalls::Begin(uint64_t generation, const v1::Assign& assign, bool in_place,
                        const std::set<uint32_t>& kept,
                        const std::map<uint64_t, uint32_t>& places) {
  std::vector<Finished> finished;
  {
    absl::MutexLock lock(&mutex_);
    generation_ = generation;
    assign_ = assign;
    in_place_ = in_place;
    ended_ = false;
    would_stand_by_ = !places.empty();
    kept_.clear();
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      Call* call = it->second;
      const auto place = places.find(it->first.second);
      const bool stands_by = call->kind() == Kind::kStandby;
      if (stands_by && place == places.end()) {
        ++it;
        continue;
      }
      const bool goes_on =
          stands_by || (call->kind() == Kind::kRejoin && kept.count(call->local_rank()) != 0);
      if (goes_on) Fill(stands_by ? place->second : call->local_rank(), call->place());
      finished.push_back({call, goes_on ? grpc::Status::OK : NotKept()});
      it = waiting_.erase(it);
    }
  }
  FinishEach(finished);
}

bool WorkerCalls::WouldStandBy() const {
  absl::MutexLock lock(&mutex_);
  return would_stand_by_ && !ended_;
}

std::set<uint64_t> WorkerCalls::StandingBy() const {
  absl::MutexLock lock(&mutex_);
  std::set<uint64_t> standing;
  for (const auto& [key, call] : waiting_) {
    if (key.first == Kind::kStandby) standing.insert(key.second);
  }
  return standing;
}

void WorkerCalls::End(const std::set<uint32_t>& kept, const std::string& reason) {
  std::vector<Finished> finished;
  {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
    kept_ = kept;
    reason_ = reason;
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      Call* call = it->second;
      const bool is_kept = kept.count(call->local_rank()) != 0;
      if (call->kind() == Kind::kStandby || (is_kept && call->kind() == Kind::kRejoin)) {
        ++it;
        continue;
      }
      if (is_kept) call->end()->set_reason(reason);
      finished.push_back({call, is_kept ? grpc::Status::OK : NotKept()});
      it = waiting_.erase(it);
    }
  }
  FinishEach(finished);
}

void WorkerCalls::FinishAll(const grpc::Status& status) {
  std::vector<Finished> finished;
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    for (const auto& [key, call] : waiting_) finished.push_back({call, status});
    waiting_.clear();
  }
  FinishEach(finished);
}

grpc::Status WorkerCalls::Place(const v1::HelloRequest& from, uint32_t* local_rank) const {
  if (from.generation() != generation_) {
    return grpc::Status(
        grpc::StatusCode::ABORTED,
        absl::StrCat("generation ", from.generation(),
                     " is not the current one of this node: that is ", generation_));
  }
  const int64_t local = int64_t{from.rank()} - assign_.first_rank();
  if (local < 0 || local >= assign_.local_world_size()) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND,
                        absl::StrCat("rank ", from.rank(), " is not on this node, which has ",
                                     assign_.local_world_size(), " from ", assign_.first_rank()));
  }
  *local_rank = static_cast<uint32_t>(local);
  return grpc::Status::OK;
}

void WorkerCalls::Fill(uint32_t local_rank, v1::HelloReply* reply) const {
  reply->set_job(options_.job);
  reply->set_generation(generation_);
  reply->set_rank(assign_.first_rank() + local_rank);
  reply->set_local_rank(local_rank);
  reply->set_node_rank(assign_.node_rank());
  reply->set_world_size(assign_.world_size());
  reply->set_local_world_size(assign_.local_world_size());
  reply->set_nodes(assign_.nodes());
  reply->set_restart_count(assign_.restart_count());
  reply->set_address(options_.address);
  reply->set_in_place(in_place_);
}

grpc::ServerUnaryReactor* WorkerCalls::Hello(grpc::CallbackServerContext* context,
                                             const v1::HelloRequest* request,
                                             v1::HelloReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  grpc::Status status = WrongToken();
  if (KnowsToken(*context, options_.token)) {
    absl::MutexLock lock(&mutex_);
    uint32_t local_rank = 0;
    status = Place(*request, &local_rank);
    if (status.ok()) {
      Fill(local_rank, reply);
      would_stand_by_ = would_stand_by_ || !in_place_;
    }
  }
  reactor->Finish(status);
  return reactor;
}

grpc::ServerUnaryReactor* WorkerCalls::Wait(grpc::CallbackServerContext* context, Call* call,
                                            const v1::HelloRequest& from,
                                            AgentEvent (*event)(const Call&)) {
  grpc::Status status = KnowsToken(*context, options_.token) ? grpc::Status::OK : WrongToken();
  Call* earlier = nullptr;
  AgentEvent happened = AgentTick{};
  bool waits = false;
  if (status.ok()) {
    absl::MutexLock lock(&mutex_);
    uint32_t local_rank = 0;
    status = Place(from, &local_rank);
    if (status.ok() && closed_) status = NotKept();
    if (status.ok() && !in_place_) {
      status = grpc::Status(grpc::StatusCode::FAILED_PRECONDITION,
                            "this job does not recover in place; give --in-place");
    }
    const bool is_kept = kept_.count(local_rank) != 0;
    if (status.ok() && ended_ && !is_kept) status = NotKept();
    if (status.ok()) {
      call->At(generation_, local_rank);
      waits = !ended_ || call->kind() == Kind::kRejoin;
      if (waits) {
        would_stand_by_ = true;
        earlier = Take(call->key());
        waiting_[call->key()] = call;
        // The call may end as soon as the lock is released.
        happened = event(*call);
      } else {
        call->end()->set_reason(reason_);
      }
    }
  }
  if (earlier != nullptr) {
    earlier->Finish(grpc::Status(grpc::StatusCode::ABORTED, "this worker called again"));
  }
  if (waits) {
    options_.on_event(std::move(happened));
  } else {
    call->Finish(status);
  }
  return call;
}

grpc::ServerUnaryReactor* WorkerCalls::AwaitEnd(grpc::CallbackServerContext* context,
                                                const v1::HelloRequest* request,
                                                v1::GenerationEnd* reply) {
  return Wait(context, new Call(*this, reply), *request, [](const Call& call) -> AgentEvent {
    return WorkerMayRejoin{call.generation(), call.local_rank(), true};
  });
}

grpc::ServerUnaryReactor* WorkerCalls::Rejoin(grpc::CallbackServerContext* context,
                                              const v1::RejoinRequest* request,
                                              v1::HelloReply* reply) {
  return Wait(context, new Call(*this, request->reason(), reply), request->from(),
              [](const Call& call) -> AgentEvent {
                return WorkerWaits{call.generation(), call.local_rank(), call.reason()};
              });
}

grpc::ServerUnaryReactor* WorkerCalls::TakePlace(grpc::CallbackServerContext* context,
                                                 const v1::TakePlaceRequest* request,
                                                 v1::HelloReply* reply) {
  Call* call = new Call(*this, request->standby(), reply);
  grpc::Status status = WrongToken();
  if (KnowsToken(*context, options_.token)) {
    absl::MutexLock lock(&mutex_);
    if (!closed_ && waiting_.insert({call->key(), call}).second) return call;
    status = NotKept();
  }
  call->Finish(status);
  return call;
}

void WorkerCalls::Dropped(Call* call) {
  {
    absl::MutexLock lock(&mutex_);
    const auto found = waiting_.find(call->key());
    if (found == waiting_.end() || found->second != call) return;
    waiting_.erase(found);
  }
  if (call->kind() == Kind::kAwaitEnd) {
    options_.on_event(WorkerMayRejoin{call->generation(), call->local_rank(), false});
  }
  call->Finish(grpc::Status::CANCELLED);
}

}  // namespace cadre
