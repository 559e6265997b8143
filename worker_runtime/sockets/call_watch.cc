#include "worker_runtime/sockets/call_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/steady_wait.h"
#include "worker_runtime/backend/exit_grace.h"

namespace cadre::sockets {
namespace {

void SetText(PeerMessage& message, absl::string_view text) {
  text.copy(message.text, sizeof(message.text) - 1);
}

}  // namespace

CallWatch::CallWatch(int rank, int size, std::unique_ptr<PeerLinks> links, Listener listener)
    : size_(size), listener_(std::move(listener)), links_(std::move(links)), ledger_(rank, size) {
  thread_ = std::thread([this] { Run(); });
}

CallWatch::~CallWatch() {
  TellLeave();
  stopping_ = true;
  links_->Wake();
  thread_.join();
}

// The thread is woken when it sleeps for good; while operations follow each other it is not.
void CallWatch::Arm() {
  if (!armed_.exchange(true)) links_->Wake();
}

Status CallWatch::BeginCall(absl::string_view text) {
  Status status;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    status = ledger_.Begin(text);
    if (status.code() == StatusCode::kAborted) AwaitLastWords(lock);
  }
  Arm();
  return status;
}

void CallWatch::EndCall() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ledger_.End();
}

void CallWatch::BeginMessage() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++messages_;
  }
  Arm();
}

void CallWatch::EndMessage() {
  const std::lock_guard<std::mutex> lock(mutex_);
  --messages_;
}

PeerMessage CallWatch::Statement(PeerMessage::Kind kind) const {
  PeerMessage message;
  message.kind = kind;
  message.call = ledger_.own().call;
  message.finished = ledger_.own().finished;
  SetText(message, ledger_.own().text);
  return message;
}

void CallWatch::Tell(PeerMessage::Kind kind) {
  PeerMessage message;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    message = Statement(kind);
  }
  for (int peer = 0; peer < size_; ++peer) links_->Send(peer, message);
}

void CallWatch::TellLeave() { TellLastWord(PeerMessage::Kind::kLeave, OkStatus()); }

void CallWatch::TellFailure(const Status& reason) {
  TellLastWord(PeerMessage::Kind::kFailure, reason);
}

void CallWatch::TellLastWord(PeerMessage::Kind kind, const Status& reason) {
  PeerMessage message;
  message.kind = kind;
  message.code = static_cast<int32_t>(reason.code());
  SetText(message, reason.message());
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (has_left_) return;
    has_left_ = true;
    message.finished = ledger_.own().finished;
  }
  heard_.notify_all();
  for (int peer = 0; peer < size_; ++peer) {
    links_->Send(peer, message, /*is_last=*/true);
  }
}

void CallWatch::Hear(int peer, const PeerMessage& message) {
  Status verdict;
  bool answers = false;
  PeerMessage answer;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    switch (message.kind) {
      case PeerMessage::Kind::kQuestion:
        answers = true;
        answer = Statement(PeerMessage::Kind::kCall);
        verdict = ledger_.Hear(peer, {message.call, message.finished, message.text});
        break;
      case PeerMessage::Kind::kCall:
        verdict = ledger_.Hear(peer, {message.call, message.finished, message.text});
        break;
      case PeerMessage::Kind::kLeave:
        left_.Update(ledger_.HearLeave(peer, message.finished));
        left_until_ = std::min(left_until_, MonoNow() + backend::kExitGrace);
        break;
      case PeerMessage::Kind::kFailure:
        verdict =
            ledger_.HearFailure(peer, Status(static_cast<StatusCode>(message.code), message.text));
        break;
    }
    heard_.notify_all();
  }
  if (answers) links_->Send(peer, answer);
  if (!verdict.ok()) listener_.fail(verdict);
}

void CallWatch::SayLeft() {
  Status left;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (left_.ok() || (MonoNow() < left_until_ && !ledger_.has_any_died())) return;
    left = std::exchange(left_, OkStatus());
  }
  listener_.fail(left);
}

void CallWatch::AwaitLastWords(std::unique_lock<std::mutex>& lock) {
  if (left_until_ == MonoTime::Never()) return;
  // After a rank's death who left is one more victim.
  WaitFor(heard_, lock, left_until_ - MonoNow(),
          [this] { return has_left_ || ledger_.has_any_died(); });
}

void CallWatch::HearEnd(int peer, LinkEnd end) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ledger_.HearEnd(peer, end == LinkEnd::kAltered);
    heard_.notify_all();
  }
  // Of a process that ended, all it sent still comes, and then the end.
  if (end == LinkEnd::kOutOfReach) listener_.lose(peer);
}

void CallWatch::Run() {
  const PeerLinks::Listener listener = {
      [this](int peer, const PeerMessage& message) { Hear(peer, message); },
      [this](int peer, LinkEnd end) { HearEnd(peer, end); }};
  uint64_t last_call = 0;
  uint32_t looks = 0;  // at the same call
  MonoTime next = MonoNow() + kStallCheckInterval;
  while (!stopping_) {
    links_->Poll(armed_ ? std::max(next - MonoNow(), absl::ZeroDuration()) + absl::Milliseconds(1)
                        : absl::InfiniteDuration(),
                 listener);
    SayLeft();
    if (MonoNow() < next) continue;
    next = MonoNow() + kStallCheckInterval;
    bool is_old = false, is_busy = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const uint64_t call = ledger_.own().call;
      is_busy = ledger_.is_running() || messages_ > 0;
      is_old = ledger_.is_running() && call == last_call;
      // A call that begins from here on arms it again.
      if (!is_busy && call == last_call) armed_ = false;
      last_call = call;
    }
    looks = is_old ? looks + 1 : 0;
    const bool has_doubled = (looks & (looks - 1)) == 0;
    if (is_old && has_doubled) Tell(PeerMessage::Kind::kCall);
  }
}

bool CallWatch::IsUndisturbed() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ledger_.is_undisturbed();
}

Status CallWatch::WhyLost(const std::set<int>& ranks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ledger_.WhyLost(ranks);
}

Status CallWatch::Explain(const std::set<int>& ranks, const Status& guess, bool may_wait) {
  if (guess.code() == StatusCode::kDeadlineExceeded) return ExplainDeadline(guess);
  return AwaitReason([&] { return ledger_.WhyLost(ranks); }, guess, may_wait);
}

Status CallWatch::ExplainMessage(int peer, const Status& guess) {
  return AwaitReason([&] { return ledger_.WhyMessageLost(peer); }, guess, /*may_wait=*/true);
}

Status CallWatch::AwaitReason(const std::function<Status()>& known, const Status& guess,
                              bool may_wait) {
  if (may_wait) Tell(PeerMessage::Kind::kQuestion);
  std::unique_lock<std::mutex> lock(mutex_);
  WaitFor(heard_, lock, may_wait ? kReasonPatience : absl::ZeroDuration(),
          [&] { return has_left_ || !known().ok(); });
  const Status reason = known();
  if (may_wait && reason.code() == StatusCode::kAborted) AwaitLastWords(lock);
  return reason.ok() ? guess : reason;
}

Status CallWatch::ExplainDeadline(const Status& guess) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!ledger_.is_running()) return guess;
    ledger_.ForgetAnswers();
  }
  Tell(PeerMessage::Kind::kQuestion);
  std::unique_lock<std::mutex> lock(mutex_);
  WaitFor(heard_, lock, kAnswerPatience,
          [this] { return has_left_ || ledger_.HaveAllAnswered() || !ledger_.failure().ok(); });
  if (!ledger_.failure().ok()) return ledger_.failure();
  const std::string missing = ledger_.Missing();
  return missing.empty() ? guess : DeadlineExceededError(missing);
}

}  // namespace cadre::sockets
