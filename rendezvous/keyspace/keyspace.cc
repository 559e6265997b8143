#include "rendezvous/keyspace/keyspace.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/text.h"
#include "rendezvous/keyspace/store_content.h"
#include "rendezvous/keyspace/store_limits.h"
#include "rendezvous/keyspace/store_request.h"

namespace cadre::keyspace {

struct Keyspace::Call {
  MonoTime now;
  const StoreContent& stored;
  uint32_t world_size;
  const Requester& requester;
  const Request& request;
  absl::string_view full;
  Outcome* outcome;
};

Outcome Keyspace::Execute(MonoTime now, const StoreContent& stored, uint32_t world_size,
                          const Requester& requester, Request request, absl::string_view full) {
  Outcome outcome;
  const Call call{now, stored, world_size, requester, request, full, &outcome};
  const absl::Status valid = CheckName(request.operation);
  if (!valid.ok()) {
    Fail(call, valid.code(), valid.message());
    return outcome;
  }
  for (const ReplyCache* memory : {&stored.answers, &std::as_const(answers_)}) {
    const Reply* answer = memory->Find(request.client, request.id);
    if (answer == nullptr) continue;
    outcome.answers.push_back({requester, *answer});
    return outcome;
  }
  const auto pending = by_request_.find({request.client, request.id});
  if (pending != by_request_.end()) {
    AddRequester(call, pending->second);
  } else {
    std::visit([&](auto& operation) { Do(call, operation); }, request.operation);
  }
  return outcome;
}

void Keyspace::AddRequester(const Call& call, uint64_t id) {
  std::vector<Requester>& requesters = waiters_.at(id).requesters;
  CADRE_CHECK(!requesters.empty(), "request ", id, " waits for no requester");
  if (std::find(requesters.begin(), requesters.end(), call.requester) != requesters.end()) return;
  if (requesters.size() >= kMaxRequestersPerWaiter) {
    return Fail(call, absl::StatusCode::kResourceExhausted,
                "the same request is waiting too many times already");
  }
  requesters.push_back(call.requester);
  if (call.requester.call != 0) by_call_[call.requester.call] = id;
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
    // Not remembered, since a repeated read returns the same or a newer value.
    call.outcome->answers.push_back({call.requester, std::move(reply)});
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
    return Fail(
        call, absl::StatusCode::kFailedPrecondition,
        absl::StrCat("barrier ", Quoted(name), ": rank ", rank, " expects ", Count(size, "rank"),
                     ", but the ranks that wait in it expect ", found->second.size));
  }
  if (!Wait(call, WaitsFor::kBarrier, name)) return;
  Barrier& barrier = barriers_[name];
  barrier.size = size;
  barrier.world_size = call.world_size;
  barrier.arrived[rank].insert(next_waiter_ - 1);
  if (barrier.arrived.size() >= size) return CompleteBarrier(call, name);
  if (call.request.wait_ms == 0) {
    const std::vector<AddressedReply> late = Expire(call.now);
    call.outcome->answers.insert(call.outcome->answers.end(), late.begin(), late.end());
  }
}

void Keyspace::CompleteBarrier(const Call& call, const std::string& name) {
  const Barrier barrier = barriers_.at(name);
  // The replies are stored: ranks that have passed never enter again for one whose reply was lost.
  Change& change = call.outcome->change.emplace();
  for (const auto& [rank, ids] : barrier.arrived) {
    for (const uint64_t id : ids) {
      change.answers.push_back(waiters_.at(id).EmptyReply());
      AnswerAndForget(id, change.answers.back(), &call.outcome->answers);
    }
  }
  // Forget() removes a barrier with its last waiter.
  CADRE_CHECK(barriers_.count(name) == 0, "barrier ", Quoted(name), " is complete");
}

bool Keyspace::MayWrite(const Call& call, const std::map<std::string, std::string>& to,
                        const std::string& key, size_t value_bytes) {
  if (value_bytes > kMaxValueBytes) {
    Fail(call, absl::StatusCode::kInvalidArgument,
         absl::StrCat("the value under ", Quoted(key), " has ", value_bytes, " bytes; at most ",
                      kMaxValueBytes, " are allowed"));
    return false;
  }
  const StoreContent& stored = call.stored;
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
  call.outcome->answers.push_back({call.requester, std::move(reply)});
}

void Keyspace::Fail(const Call& call, absl::StatusCode code, absl::string_view message) {
  call.outcome->answers.push_back(
      {call.requester, ErrorReply(call.request.client, call.request.id, code, message)});
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
  waiter.requesters = {call.requester};
  by_request_[waiter.request] = id;
  by_name_[{what, name}].insert(id);
  by_deadline_.insert({waiter.deadline, id});
  // A repeated request does not come here (AddRequester()).
  CADRE_CHECK(by_request_.size() == waiters_.size() && by_deadline_.size() == waiters_.size(),
              waiters_.size(), " waiters, ", by_request_.size(), " requests, ", by_deadline_.size(),
              " deadlines");
  if (call.requester.call != 0) by_call_[call.requester.call] = id;
  return true;
}

// Waiters: they are woken, time out, are abandoned, or are answered when the store closes.

void Keyspace::Wake(WaitsFor what, const std::string& name, const std::string& value,
                    Outcome* outcome) {
  if (by_name_.empty()) return;
  const auto found = by_name_.find({what, name});
  if (found == by_name_.end()) return;
  const std::set<uint64_t> ids = found->second;
  for (const uint64_t id : ids) {
    Reply reply = waiters_.at(id).EmptyReply();
    reply.value = value;
    AnswerAndForget(id, std::move(reply), &outcome->answers);
  }
}

void Keyspace::AnswerAndForget(uint64_t id, Reply reply, std::vector<AddressedReply>* answers) {
  for (const Requester& requester : waiters_.at(id).requesters)
    answers->push_back({requester, reply});
  Forget(id);
}

void Keyspace::Forget(uint64_t id) {
  const auto found = waiters_.find(id);
  CADRE_CHECK(found != waiters_.end(), "no waiter ", id);
  const Waiter& waiter = found->second;
  by_request_.erase(waiter.request);
  by_deadline_.erase({waiter.deadline, id});
  for (const Requester& requester : waiter.requesters) {
    if (requester.call != 0) by_call_.erase(requester.call);
  }
  const auto named = by_name_.find({waiter.what, waiter.name});
  CADRE_CHECK(named != by_name_.end(), "waiter ", id, " is not found by its name");
  named->second.erase(id);
  if (named->second.empty()) by_name_.erase(named);
  if (waiter.what == WaitsFor::kBarrier) {
    const auto barrier = barriers_.find(waiter.name);
    if (barrier != barriers_.end()) {
      const auto rank = barrier->second.arrived.find(waiter.rank);
      if (rank != barrier->second.arrived.end()) {
        rank->second.erase(id);
        if (rank->second.empty()) barrier->second.arrived.erase(rank);
      }
      if (barrier->second.arrived.empty()) barriers_.erase(barrier);
    }
  }
  waiters_.erase(found);
}

std::string Keyspace::TimeoutText(const Waiter& waiter) const {
  if (waiter.what == WaitsFor::kKey) {
    return absl::StrCat("no rank set key ", Quoted(waiter.name), " in time");
  }
  if (waiter.what == WaitsFor::kId) {
    return absl::StrCat("no rank published an id for communicator ", Quoted(waiter.name),
                        " in time");
  }
  const Barrier& barrier = barriers_.at(waiter.name);
  const uint32_t arrived = barrier.arrived.size();
  std::string text = absl::StrCat("barrier ", Quoted(waiter.name), ": ", arrived, " of ",
                                  Count(barrier.size, "rank"), " arrived in time");
  // Which ranks a barrier of less than the world is for is unknown.
  if (barrier.size != barrier.world_size) return text;
  std::vector<std::string> missing;
  for (uint32_t rank = 0; rank < barrier.size && missing.size() < kFirstFew; ++rank) {
    if (barrier.arrived.count(rank) == 0) missing.push_back(absl::StrCat(rank));
  }
  const size_t total = barrier.size - arrived;
  return absl::StrCat(text, "; missing: ", total == 1 ? "rank " : "ranks ",
                      FirstFew(missing, total));
}

std::vector<AddressedReply> Keyspace::Expire(MonoTime now) {
  std::vector<AddressedReply> answers;
  // Requests that time out at the same moment see the same arrivals, so their text is made once.
  std::map<std::pair<WaitsFor, std::string>, std::string> texts;
  std::vector<std::pair<uint64_t, std::string>> late;
  for (const auto& [deadline, id] : by_deadline_) {
    if (deadline > now) break;
    const Waiter& waiter = waiters_.at(id);
    std::string& text = texts[{waiter.what, waiter.name}];
    if (text.empty()) text = TimeoutText(waiter);
    late.emplace_back(id, text);
  }
  for (const auto& [id, why] : late) {
    const RequestKey request = waiters_.at(id).request;
    AnswerAndForget(
        id, ErrorReply(request.first, request.second, absl::StatusCode::kDeadlineExceeded, why),
        &answers);
  }
  return answers;
}

MonoTime Keyspace::NextDeadline() const {
  return by_deadline_.empty() ? MonoTime::Never() : by_deadline_.begin()->first;
}

std::vector<AddressedReply> Keyspace::End(absl::StatusCode code, absl::string_view message) {
  std::vector<AddressedReply> answers;
  for (const auto& [id, waiter] : waiters_) {
    const Reply reply = ErrorReply(waiter.request.first, waiter.request.second, code, message);
    for (const Requester& requester : waiter.requesters) answers.push_back({requester, reply});
  }
  *this = Keyspace();
  return answers;
}

void Keyspace::ForgetCall(uint64_t call) {
  const auto found = by_call_.find(call);
  if (found == by_call_.end()) return;
  const uint64_t id = found->second;
  by_call_.erase(found);
  std::vector<Requester>& requesters = waiters_.at(id).requesters;
  requesters.erase(std::remove(requesters.begin(), requesters.end(), Requester{call, ""}),
                   requesters.end());
  if (requesters.empty()) Forget(id);
}

void Keyspace::ForgetPeer(const std::string& peer) {
  std::vector<uint64_t> abandoned;
  for (auto& [id, waiter] : waiters_) {
    std::vector<Requester>& requesters = waiter.requesters;
    requesters.erase(std::remove(requesters.begin(), requesters.end(), Requester{0, peer}),
                     requesters.end());
    if (requesters.empty()) abandoned.push_back(id);
  }
  for (const uint64_t id : abandoned) Forget(id);
}

absl::Status Keyspace::CheckInvariants() const {
  if (waiters_.size() > kMaxWaiters || by_request_.size() != waiters_.size() ||
      by_deadline_.size() != waiters_.size() ||
      by_call_.size() > waiters_.size() * kMaxRequestersPerWaiter) {
    return absl::InternalError("store: the indexes of waiters do not match");
  }
  if (answers_.size() > kMaxAnswers) {
    return absl::InternalError("store: too many answers are remembered");
  }
  for (const auto& [name, barrier] : barriers_) {
    if (barrier.arrived.empty() || barrier.arrived.size() >= barrier.size) {
      return absl::InternalError(absl::StrCat("store: barrier ", Quoted(name), " should be gone"));
    }
    for (const auto& [rank, ids] : barrier.arrived) {
      for (const uint64_t id : ids) {
        if (waiters_.count(id) == 0) {
          return absl::InternalError(absl::StrCat("store: barrier ", Quoted(name),
                                                  " counts a request that no longer waits"));
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace cadre::keyspace
