// Methods of Keyspace: those who wait are woken, late, gone, or told that it is over.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "rendezvous/keyspace/keyspace.h"
#include "rendezvous/keyspace/limits.h"

namespace cadre::keyspace {

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

void Keyspace::AnswerAndForget(uint64_t id, Reply reply, std::vector<AnswerTo>* answers) {
  for (const Asker& asker : waiters_.at(id).askers) answers->push_back({asker, reply});
  Forget(id);
}

void Keyspace::Forget(uint64_t id) {
  const auto found = waiters_.find(id);
  const Waiter& waiter = found->second;
  by_request_.erase(waiter.request);
  by_deadline_.erase({waiter.deadline, id});
  for (const Asker& asker : waiter.askers) {
    if (asker.call != 0) by_call_.erase(asker.call);
  }
  const auto named = by_name_.find({waiter.what, waiter.name});
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

std::string Keyspace::WhyNotInTime(const Waiter& waiter) const {
  if (waiter.what == WaitsFor::kKey) {
    return absl::StrCat("nobody set key ", Quoted(waiter.name), " in time");
  }
  if (waiter.what == WaitsFor::kId) {
    return absl::StrCat("nobody published an id for communicator ", Quoted(waiter.name),
                        " in time");
  }
  const Barrier& barrier = barriers_.at(waiter.name);
  const uint32_t arrived = barrier.arrived.size();
  std::string text = absl::StrCat("barrier ", Quoted(waiter.name), ": ", arrived, " of ",
                                  Count(barrier.size, "rank"), " came in time");
  // In a barrier of part of the world nobody can say which ranks it is for.
  if (barrier.size != barrier.world_size) return text;
  std::vector<std::string> missing;
  for (uint32_t rank = 0; rank < barrier.size && missing.size() < kFirstFew; ++rank) {
    if (barrier.arrived.count(rank) == 0) missing.push_back(absl::StrCat(rank));
  }
  const size_t total = barrier.size - arrived;
  return absl::StrCat(text, "; missing: ", total == 1 ? "rank " : "ranks ",
                      FirstFew(missing, total));
}

std::vector<AnswerTo> Keyspace::Expire(MonoTime now) {
  std::vector<AnswerTo> answers;
  // All who are late at the same moment see the same arrivals and get the same text, made once.
  std::map<std::pair<WaitsFor, std::string>, std::string> texts;
  std::vector<std::pair<uint64_t, std::string>> late;
  for (const auto& [deadline, id] : by_deadline_) {
    if (deadline > now) break;
    const Waiter& waiter = waiters_.at(id);
    std::string& text = texts[{waiter.what, waiter.name}];
    if (text.empty()) text = WhyNotInTime(waiter);
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

std::vector<AnswerTo> Keyspace::End(absl::StatusCode code, absl::string_view message) {
  std::vector<AnswerTo> answers;
  for (const auto& [id, waiter] : waiters_) {
    const Reply reply = ErrorReply(waiter.request.first, waiter.request.second, code, message);
    for (const Asker& asker : waiter.askers) answers.push_back({asker, reply});
  }
  *this = Keyspace();
  return answers;
}

void Keyspace::ForgetCall(uint64_t call) {
  const auto found = by_call_.find(call);
  if (found == by_call_.end()) return;
  const uint64_t id = found->second;
  by_call_.erase(found);
  std::vector<Asker>& askers = waiters_.at(id).askers;
  askers.erase(std::remove(askers.begin(), askers.end(), Asker{call, ""}), askers.end());
  if (askers.empty()) Forget(id);
}

void Keyspace::ForgetPeer(const std::string& peer) {
  std::vector<uint64_t> abandoned;
  for (auto& [id, waiter] : waiters_) {
    std::vector<Asker>& askers = waiter.askers;
    askers.erase(std::remove(askers.begin(), askers.end(), Asker{0, peer}), askers.end());
    if (askers.empty()) abandoned.push_back(id);
  }
  for (const uint64_t id : abandoned) Forget(id);
}

absl::Status Keyspace::CheckInvariants() const {
  if (waiters_.size() > kMaxWaiters || by_request_.size() != waiters_.size() ||
      by_deadline_.size() != waiters_.size() ||
      by_call_.size() > waiters_.size() * kMaxAskersPerWaiter) {
    return absl::InternalError("store: the indexes of waiters disagree");
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
          return absl::InternalError(
              absl::StrCat("store: barrier ", Quoted(name), " counts one who has left"));
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace cadre::keyspace
