#include "rendezvous/keyspace/keyspace.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "rendezvous/keyspace/limits.h"

namespace cadre::keyspace {

struct Keyspace::Call {
  MonoTime now;
  const Stored& stored;
  uint32_t world_size;
  const Asker& asker;
  const Request& request;
  absl::string_view full;
  Outcome* outcome;
};

Outcome Keyspace::Execute(MonoTime now, const Stored& stored, uint32_t world_size,
                          const Asker& asker, Request request, absl::string_view full) {
  Outcome outcome;
  const Call call{now, stored, world_size, asker, request, full, &outcome};
  const absl::Status valid = CheckName(request.operation);
  if (!valid.ok()) {
    Fail(call, valid.code(), valid.message());
    return outcome;
  }
  for (const Answers* memory : {&stored.answers, &std::as_const(answers_)}) {
    const Reply* answer = memory->Find(request.client, request.id);
    if (answer == nullptr) continue;
    outcome.answers.push_back({asker, *answer});
    return outcome;
  }
  const auto pending = by_request_.find({request.client, request.id});
  if (pending != by_request_.end()) {
    WaitAsWell(call, pending->second);
  } else {
    std::visit([&](auto& operation) { Do(call, operation); }, request.operation);
  }
  return outcome;
}

void Keyspace::WaitAsWell(const Call& call, uint64_t id) {
  std::vector<Asker>& askers = waiters_.at(id).askers;
  if (std::find(askers.begin(), askers.end(), call.asker) != askers.end()) return;
  if (askers.size() >= kMaxAskersPerWaiter) {
    return Fail(call, absl::StatusCode::kResourceExhausted,
                "the same request waits too many times");
  }
  askers.push_back(call.asker);
  if (call.asker.call != 0) by_call_[call.asker.call] = id;
}

void Keyspace::Do(const Call& call, Set& set) {
  if (!MayWrite(call, call.stored.keys, set.key, set.value.size())) return;
  WriteKey(call, std::move(set.key), std::move(set.value));
  Answer(call, ReplyTo(call.request));
}

void Keyspace::Do(const Call& call, Add& add) {
  int64_t number = 0;
  const auto found = call.stored.keys.find(add.key);
  if (found != call.stored.keys.end() && !absl::SimpleAtoi(found->second, &number)) {
    return Fail(call, absl::StatusCode::kFailedPrecondition,
                absl::StrCat("key ", Quoted(add.key), " holds no number: ", Quoted(found->second)));
  }
  if (__builtin_add_overflow(number, add.delta, &number)) {
    return Fail(call, absl::StatusCode::kFailedPrecondition,
                absl::StrCat("the sum under key ", Quoted(add.key), " exceeds 64 bits"));
  }
  std::string value = absl::StrCat(number);
  if (!MayWrite(call, call.stored.keys, add.key, value.size())) return;
  WriteKey(call, std::move(add.key), std::move(value));
  Reply reply = ReplyTo(call.request);
  reply.number = number;
  Answer(call, std::move(reply));
}

void Keyspace::Do(const Call& call, CompareAndSet& swap) {
  const auto found = call.stored.keys.find(swap.key);
  const bool absent = found == call.stored.keys.end();
  const bool equal = absent ? swap.expected.empty() : found->second == swap.expected;
  if (!equal) {
    Reply reply = ErrorReply(
        call.request.client, call.request.id, absl::StatusCode::kFailedPrecondition,
        absl::StrCat("key ", Quoted(swap.key), absent ? " is absent" : " holds another value"));
    if (!absent) reply.value = found->second;
    return Answer(call, std::move(reply));
  }
  if (!MayWrite(call, call.stored.keys, swap.key, swap.desired.size())) return;
  Reply reply = ReplyTo(call.request);
  reply.value = swap.desired;
  WriteKey(call, std::move(swap.key), std::move(swap.desired));
  Answer(call, std::move(reply));
}

void Keyspace::Do(const Call& call, const Delete& erase) {
  Reply reply = ReplyTo(call.request);
  if (call.stored.keys.count(erase.key) != 0) {
    reply.number = 1;
    call.outcome->change = Change{KeyErased{erase.key}, {}};
  }
  Answer(call, std::move(reply));
}

void Keyspace::Do(const Call& call, const Get& get) {
  Read(call, WaitsFor::kKey, get.key, call.stored.keys);
}

void Keyspace::Do(const Call& call, const GetId& get) {
  Read(call, WaitsFor::kId, get.communicator, call.stored.communicator_ids);
}

void Keyspace::Read(const Call& call, WaitsFor what, const std::string& name,
                    const std::map<std::string, std::string>& from) {
  const auto found = from.find(name);
  if (found != from.end()) {
    Reply reply = ReplyTo(call.request);
    reply.value = found->second;
    // Reading again gives the same or something newer: not worth remembering.
    call.outcome->answers.push_back({call.asker, std::move(reply)});
    return;
  }
  if (call.request.wait_ms == 0) {
    return Fail(
        call, absl::StatusCode::kNotFound,
        absl::StrCat(what == WaitsFor::kKey ? "no key " : "no id for communicator ", Quoted(name)));
  }
  Wait(call, what, name);
}

void Keyspace::Do(const Call& call, const PublishId& publish) {
  const std::string& name = publish.communicator;
  const auto found = call.stored.communicator_ids.find(name);
  if (found != call.stored.communicator_ids.end()) {
    if (found->second == publish.id) return Answer(call, ReplyTo(call.request));
    return Fail(call, absl::StatusCode::kFailedPrecondition,
                absl::StrCat("communicator ", Quoted(name), " already has another id"));
  }
  if (!MayWrite(call, call.stored.communicator_ids, name, publish.id.size())) return;
  call.outcome->change = Change{IdPublished{name, publish.id}, {}};
  Answer(call, ReplyTo(call.request));
  Wake(WaitsFor::kId, name, publish.id, call.outcome);
}

void Keyspace::Do(const Call& call, const EnterBarrier& enter) {
  const std::string& name = enter.name;
  const int32_t rank = call.request.rank;
  const uint32_t size = enter.size == 0 ? call.world_size : enter.size;
  if (rank < 0 || static_cast<uint32_t>(rank) >= call.world_size || size > call.world_size) {
    return Fail(call, absl::StatusCode::kInvalidArgument,
                absl::StrCat("barrier ", Quoted(name), ": rank ", rank, " and size ", size,
                             " do not fit a world of ", call.world_size));
  }
  const auto found = barriers_.find(name);
  if (found != barriers_.end() && found->second.size != size) {
    return Fail(call, absl::StatusCode::kFailedPrecondition,
                absl::StrCat("barrier ", Quoted(name), ": rank ", rank, " expects ",
                             Count(size, "rank"), ", those inside expect ", found->second.size));
  }
  if (!Wait(call, WaitsFor::kBarrier, name)) return;
  Barrier& barrier = barriers_[name];
  barrier.size = size;
  barrier.world_size = call.world_size;
  barrier.arrived[rank].insert(next_waiter_ - 1);
  if (barrier.arrived.size() >= size) return CompleteBarrier(call, name);
  if (call.request.wait_ms == 0) {
    const std::vector<AnswerTo> late = Expire(call.now);
    call.outcome->answers.insert(call.outcome->answers.end(), late.begin(), late.end());
  }
}

void Keyspace::CompleteBarrier(const Call& call, const std::string& name) {
  const Barrier barrier = barriers_.at(name);
  // Kept, because those who have been let through never come again for the others.
  Change& change = call.outcome->change.emplace();
  for (const auto& [rank, ids] : barrier.arrived) {
    for (const uint64_t id : ids) {
      change.answers.push_back(waiters_.at(id).EmptyReply());
      AnswerAndForget(id, change.answers.back(), &call.outcome->answers);
    }
  }
}

bool Keyspace::MayWrite(const Call& call, const std::map<std::string, std::string>& to,
                        const std::string& key, size_t value_bytes) {
  if (value_bytes > kMaxValueBytes) {
    Fail(call, absl::StatusCode::kInvalidArgument,
         absl::StrCat("the value under ", Quoted(key), " has ", value_bytes, " bytes; at most ",
                      kMaxValueBytes, " are allowed"));
    return false;
  }
  const Stored& stored = call.stored;
  if (stored.keys.size() + stored.communicator_ids.size() >= kMaxKeys && to.count(key) == 0) {
    Fail(call, absl::StatusCode::kResourceExhausted,
         absl::StrCat("this generation has ", kMaxKeys, " keys already"));
    return false;
  }
  if (stored.bytes + key.size() + value_bytes > kMaxStoreBytes) {
    Fail(call, absl::StatusCode::kResourceExhausted,
         absl::StrCat("this generation stores ", kMaxStoreBytes >> 20, " MiB already"));
    return false;
  }
  if (!call.full.empty()) {
    Fail(call, absl::StatusCode::kResourceExhausted, call.full);
    return false;
  }
  return true;
}

void Keyspace::WriteKey(const Call& call, std::string key, std::string value) {
  Wake(WaitsFor::kKey, key, value, call.outcome);
  call.outcome->change = Change{KeyWritten{std::move(key), std::move(value)}, {}};
}

void Keyspace::Answer(const Call& call, Reply reply) {
  if (call.outcome->change.has_value()) {
    call.outcome->change->answers.push_back(reply);
  } else {
    answers_.Remember(reply);
  }
  call.outcome->answers.push_back({call.asker, std::move(reply)});
}

void Keyspace::Fail(const Call& call, absl::StatusCode code, absl::string_view message) {
  call.outcome->answers.push_back(
      {call.asker, ErrorReply(call.request.client, call.request.id, code, message)});
}

bool Keyspace::Wait(const Call& call, WaitsFor what, const std::string& name) {
  if (waiters_.size() >= kMaxWaiters) {
    Fail(call, absl::StatusCode::kResourceExhausted,
         absl::StrCat(kMaxWaiters, " requests wait already in this generation"));
    return false;
  }
  const uint64_t id = next_waiter_++;
  Waiter& waiter = waiters_[id];
  waiter.what = what;
  waiter.name = name;
  waiter.request = {call.request.client, call.request.id};
  waiter.rank = call.request.rank;
  waiter.deadline = call.now + std::min(absl::Milliseconds(call.request.wait_ms), kMaxWait);
  waiter.askers = {call.asker};
  by_request_[waiter.request] = id;
  by_name_[{what, name}].insert(id);
  by_deadline_.insert({waiter.deadline, id});
  if (call.asker.call != 0) by_call_[call.asker.call] = id;
  return true;
}

}  // namespace cadre::keyspace
