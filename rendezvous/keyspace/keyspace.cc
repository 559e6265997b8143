#include "rendezvous/keyspace/keyspace.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "rpc/store_reply.h"

namespace cadre {
namespace {

absl::Status CheckName(absl::string_view what, absl::string_view name) {
  if (!name.empty() && name.size() <= kMaxKeyBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " must have 1 to ", kMaxKeyBytes, " bytes; got ", name.size()));
}

absl::Status CheckOperation(const v1::StoreRequest& request) {
  switch (request.operation_case()) {
    case v1::StoreRequest::kSet:
      return CheckName("key", request.set().key());
    case v1::StoreRequest::kGet:
      return CheckName("key", request.get().key());
    case v1::StoreRequest::kAdd:
      return CheckName("key", request.add().key());
    case v1::StoreRequest::kCompareAndSet:
      return CheckName("key", request.compare_and_set().key());
    case v1::StoreRequest::kDelete:
      return CheckName("key", request.delete_().key());
    case v1::StoreRequest::kBarrier:
      return CheckName("barrier name", request.barrier().name());
    case v1::StoreRequest::kPublishId:
      return CheckName("communicator", request.publish_id().communicator());
    case v1::StoreRequest::kGetId:
      return CheckName("communicator", request.get_id().communicator());
    case v1::StoreRequest::OPERATION_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("the request holds no operation");
}

}  // namespace

struct Keyspace::Operation {
  MonoTime now;
  const StoredKeys& stored;
  uint32_t world_size;
  const Asker& asker;
  const v1::StoreRequest& request;
  StoreOutcome* outcome;
};

v1::StoreReply ReplyTo(uint64_t client, uint64_t request_id) {
  v1::StoreReply reply;
  reply.set_client(client);
  reply.set_request_id(request_id);
  return reply;
}

v1::StoreReply ErrorReply(const v1::StoreRequest& request, absl::StatusCode code,
                          absl::string_view message) {
  return StoreErrorReply(request, absl::Status(code, Shortened(message, kMaxReplyMessageBytes)));
}

StoreOutcome Keyspace::Execute(MonoTime now, const StoredKeys& stored, uint32_t world_size,
                               const Asker& asker, const v1::StoreRequest& request) {
  StoreOutcome outcome;
  const Operation op{now, stored, world_size, asker, request, &outcome};
  const absl::Status valid = CheckOperation(request);
  if (!valid.ok()) {
    Fail(op, valid.code(), std::string(valid.message()));
    return outcome;
  }
  for (const Answers* memory : {&stored.answers, &std::as_const(answers_)}) {
    const v1::StoreReply* answer = memory->Find(request.client(), request.request_id());
    if (answer == nullptr) continue;
    outcome.answers.push_back({asker, *answer});
    return outcome;
  }
  const auto pending = by_request_.find({request.client(), request.request_id()});
  if (pending != by_request_.end()) {
    std::vector<Asker>& askers = waiters_[pending->second].askers;
    if (std::find(askers.begin(), askers.end(), asker) != askers.end()) return outcome;
    if (askers.size() >= kMaxAskersPerWaiter) {
      Fail(op, absl::StatusCode::kResourceExhausted, "the same request waits too many times");
      return outcome;
    }
    askers.push_back(asker);
    if (asker.call.has_value()) by_call_[*asker.call] = pending->second;
    return outcome;
  }
  switch (request.operation_case()) {
    case v1::StoreRequest::kSet:
      Set(op, request.set().key(), request.set().value());
      break;
    case v1::StoreRequest::kGet:
      Get(op, WaitsFor::kKey, request.get().key(), stored.keys);
      break;
    case v1::StoreRequest::kAdd:
      Add(op);
      break;
    case v1::StoreRequest::kCompareAndSet:
      CompareAndSet(op);
      break;
    case v1::StoreRequest::kDelete:
      Delete(op);
      break;
    case v1::StoreRequest::kBarrier:
      EnterBarrier(op);
      break;
    case v1::StoreRequest::kPublishId:
      PublishId(op);
      break;
    case v1::StoreRequest::kGetId:
      Get(op, WaitsFor::kId, request.get_id().communicator(), stored.communicator_ids);
      break;
    case v1::StoreRequest::OPERATION_NOT_SET:
      break;
  }
  return outcome;
}

void Keyspace::Set(const Operation& op, const std::string& key, const std::string& value) {
  if (!MayWrite(op, key, value.size())) return;
  WriteKey(op, key, value);
  Reply(op, ReplyTo(op.request.client(), op.request.request_id()));
}

void Keyspace::Add(const Operation& op) {
  const v1::AddToKey& add = op.request.add();
  int64_t number = 0;
  const auto found = op.stored.keys.find(add.key());
  if (found != op.stored.keys.end() && !absl::SimpleAtoi(found->second, &number)) {
    return Fail(
        op, absl::StatusCode::kFailedPrecondition,
        absl::StrCat("key ", Quoted(add.key()), " holds no number: ", Quoted(found->second)));
  }
  if (__builtin_add_overflow(number, add.delta(), &number)) {
    return Fail(op, absl::StatusCode::kFailedPrecondition,
                absl::StrCat("the sum under key ", Quoted(add.key()), " exceeds 64 bits"));
  }
  const std::string value = absl::StrCat(number);
  if (!MayWrite(op, add.key(), value.size())) return;
  WriteKey(op, add.key(), value);
  v1::StoreReply reply = ReplyTo(op.request.client(), op.request.request_id());
  reply.set_number(number);
  Reply(op, std::move(reply));
}

void Keyspace::CompareAndSet(const Operation& op) {
  const v1::CompareAndSetKey& swap = op.request.compare_and_set();
  const auto found = op.stored.keys.find(swap.key());
  const bool absent = found == op.stored.keys.end();
  const bool equal = absent ? swap.expected().empty() : found->second == swap.expected();
  if (!equal) {
    v1::StoreReply reply = ErrorReply(
        op.request, absl::StatusCode::kFailedPrecondition,
        absl::StrCat("key ", Quoted(swap.key()), absent ? " is absent" : " holds another value"));
    if (!absent) reply.set_value(found->second);
    return Reply(op, std::move(reply));
  }
  if (!MayWrite(op, swap.key(), swap.desired().size())) return;
  WriteKey(op, swap.key(), swap.desired());
  v1::StoreReply reply = ReplyTo(op.request.client(), op.request.request_id());
  reply.set_value(swap.desired());
  Reply(op, std::move(reply));
}

void Keyspace::Delete(const Operation& op) {
  const std::string& key = op.request.delete_().key();
  v1::StoreReply reply = ReplyTo(op.request.client(), op.request.request_id());
  if (op.stored.keys.count(key) != 0) {
    reply.set_number(1);
    op.outcome->append.emplace();
    op.outcome->append->mutable_key_erased()->set_generation(op.request.generation());
    op.outcome->append->mutable_key_erased()->set_key(key);
  }
  Reply(op, std::move(reply));
}

void Keyspace::Get(const Operation& op, WaitsFor what, const std::string& name,
                   const std::map<std::string, std::string>& from) {
  const auto found = from.find(name);
  if (found != from.end()) {
    v1::StoreReply reply = ReplyTo(op.request.client(), op.request.request_id());
    reply.set_value(found->second);
    // Reading again gives the same or something newer: not worth remembering.
    op.outcome->answers.push_back({op.asker, std::move(reply)});
    return;
  }
  if (op.request.wait_ms() == 0) {
    return Fail(
        op, absl::StatusCode::kNotFound,
        absl::StrCat(what == WaitsFor::kKey ? "no key " : "no id for communicator ", Quoted(name)));
  }
  Wait(op, what, name);
}

void Keyspace::PublishId(const Operation& op) {
  const v1::PublishCommunicatorId& publish = op.request.publish_id();
  const std::string& name = publish.communicator();
  const auto found = op.stored.communicator_ids.find(name);
  if (found != op.stored.communicator_ids.end()) {
    if (found->second == publish.id()) {
      return Reply(op, ReplyTo(op.request.client(), op.request.request_id()));
    }
    return Fail(op, absl::StatusCode::kFailedPrecondition,
                absl::StrCat("communicator ", Quoted(name), " already has another id"));
  }
  if (!MayWrite(op, name, publish.id().size())) return;
  op.outcome->append.emplace();
  v1::CommunicatorIdPublished* record = op.outcome->append->mutable_communicator_id_published();
  record->set_generation(op.request.generation());
  record->set_communicator(name);
  record->set_id(publish.id());
  Reply(op, ReplyTo(op.request.client(), op.request.request_id()));
  Wake(WaitsFor::kId, name, publish.id(), op.outcome);
}

void Keyspace::EnterBarrier(const Operation& op) {
  const std::string& name = op.request.barrier().name();
  const int32_t rank = op.request.rank();
  const uint32_t size =
      op.request.barrier().size() == 0 ? op.world_size : op.request.barrier().size();
  if (rank < 0 || static_cast<uint32_t>(rank) >= op.world_size || size > op.world_size) {
    return Fail(op, absl::StatusCode::kInvalidArgument,
                absl::StrCat("barrier ", Quoted(name), ": rank ", rank, " and size ", size,
                             " do not fit a world of ", op.world_size));
  }
  const auto found = barriers_.find(name);
  if (found != barriers_.end() && found->second.size != size) {
    return Fail(op, absl::StatusCode::kFailedPrecondition,
                absl::StrCat("barrier ", Quoted(name), ": rank ", rank, " expects ",
                             Count(size, "rank"), ", those inside expect ", found->second.size));
  }
  if (!Wait(op, WaitsFor::kBarrier, name)) return;
  Barrier& barrier = barriers_[name];
  barrier.size = size;
  barrier.world_size = op.world_size;
  barrier.arrived[rank].insert(next_waiter_ - 1);
  if (barrier.arrived.size() >= size) return CompleteBarrier(op, name);
  if (op.request.wait_ms() == 0) {
    const std::vector<StoreAnswerTo> late = Expire(op.now);
    op.outcome->answers.insert(op.outcome->answers.end(), late.begin(), late.end());
  }
}

void Keyspace::CompleteBarrier(const Operation& op, const std::string& name) {
  const Barrier barrier = barriers_[name];
  // On record, because those who have been let through never come again for the others.
  op.outcome->append.emplace();
  op.outcome->append->mutable_store_answered()->set_generation(op.request.generation());
  for (const auto& [rank, ids] : barrier.arrived) {
    for (const uint64_t id : ids) {
      const RequestKey request = waiters_[id].request;
      v1::StoreReply reply = ReplyTo(request.first, request.second);
      *op.outcome->append->add_answers() = reply;
      AnswerAndForget(id, std::move(reply), &op.outcome->answers);
    }
  }
}

bool Keyspace::MayWrite(const Operation& op, const std::string& key, size_t value_bytes) {
  if (value_bytes > kMaxValueBytes) {
    Fail(op, absl::StatusCode::kInvalidArgument,
         absl::StrCat("the value under ", Quoted(key), " has ", value_bytes, " bytes; at most ",
                      kMaxValueBytes, " are allowed"));
    return false;
  }
  const StoredKeys& stored = op.stored;
  const bool known = op.request.has_publish_id() ? stored.communicator_ids.count(key) != 0
                                                 : stored.keys.count(key) != 0;
  if (!known && stored.keys.size() + stored.communicator_ids.size() >= kMaxKeys) {
    Fail(op, absl::StatusCode::kResourceExhausted,
         absl::StrCat("this generation has ", kMaxKeys, " keys already"));
    return false;
  }
  if (stored.bytes + key.size() + value_bytes > kMaxStoreBytes) {
    Fail(op, absl::StatusCode::kResourceExhausted,
         absl::StrCat("this generation stores ", kMaxStoreBytes >> 20, " MiB already"));
    return false;
  }
  return true;
}

void Keyspace::WriteKey(const Operation& op, const std::string& key, const std::string& value) {
  op.outcome->append.emplace();
  v1::KeyWritten* record = op.outcome->append->mutable_key_written();
  record->set_generation(op.request.generation());
  record->set_key(key);
  record->set_value(value);
  Wake(WaitsFor::kKey, key, value, op.outcome);
}

void Keyspace::Reply(const Operation& op, v1::StoreReply reply) {
  if (op.outcome->append.has_value()) {
    *op.outcome->append->add_answers() = reply;
  } else {
    answers_.Remember(reply);
  }
  op.outcome->answers.push_back({op.asker, std::move(reply)});
}

void Keyspace::Fail(const Operation& op, absl::StatusCode code, absl::string_view message) {
  op.outcome->answers.push_back({op.asker, ErrorReply(op.request, code, message)});
}

bool Keyspace::Wait(const Operation& op, WaitsFor what, const std::string& name) {
  if (waiters_.size() >= kMaxWaiters) {
    Fail(op, absl::StatusCode::kResourceExhausted,
         absl::StrCat(kMaxWaiters, " requests wait already in this generation"));
    return false;
  }
  const uint64_t id = next_waiter_++;
  Waiter& waiter = waiters_[id];
  waiter.what = what;
  waiter.name = name;
  waiter.request = {op.request.client(), op.request.request_id()};
  waiter.rank = op.request.rank();
  waiter.deadline =
      op.now + absl::Milliseconds(std::min<uint32_t>(op.request.wait_ms(), kMaxWaitMs));
  waiter.askers = {op.asker};
  by_request_[waiter.request] = id;
  by_name_[{what, name}].insert(id);
  by_deadline_.insert({waiter.deadline, id});
  if (op.asker.call.has_value()) by_call_[*op.asker.call] = id;
  return true;
}

}  // namespace cadre
