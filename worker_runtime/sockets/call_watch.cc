#include "worker_runtime/sockets/call_watch.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/steady_wait.h"
#include "worker_runtime/backend/exit_grace.h"
#include "worker_runtime/wire/connection.h"

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
  ReportLeave();
  stopping_ = true;
  links_->Wake();
  thread_.join();
}

// Wakes the thread only if it sleeps without a timeout, not for operations in close succession.
void CallWatch::Arm() {
  if (!armed_.exchange(true)) links_->Wake();
}

Status CallWatch::BeginCall(absl::string_view text) {
  Status status;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    status = ledger_.Begin(text);
    if (status.code() == StatusCode::kAborted) AwaitFinalReports(lock);
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

void CallWatch::SendReport(PeerMessage::Kind kind) {
  PeerMessage message;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    message = Statement(kind);
  }
  for (int peer = 0; peer < size_; ++peer) links_->Send(peer, message);
}

void CallWatch::ReportLeave() { SendFinalReport(PeerMessage::Kind::kLeave, OkStatus()); }

void CallWatch::ReportFailure(const Status& reason) {
  SendFinalReport(PeerMessage::Kind::kFailure, reason);
}

void CallWatch::SendFinalReport(PeerMessage::Kind kind, const Status& reason) {
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
  peer_reported_.notify_all();
  for (int peer = 0; peer < size_; ++peer) {
    links_->Send(peer, message, /*is_last=*/true);
  }
}

void CallWatch::OnMessage(int peer, const PeerMessage& message) {
  Status verdict;
  bool answers = false;
  PeerMessage answer;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    switch (message.kind) {
      case PeerMessage::Kind::kQuestion:
        answers = true;
        answer = Statement(PeerMessage::Kind::kCall);
        verdict = ledger_.OnMessage(peer, {message.call, message.finished, message.text});
        break;
      case PeerMessage::Kind::kCall:
        verdict = ledger_.OnMessage(peer, {message.call, message.finished, message.text});
        break;
      case PeerMessage::Kind::kLeave:
        left_.Update(ledger_.OnLeave(peer, message.finished));
        left_until_ = std::min(left_until_, MonoNow() + backend::kExitGrace);
        break;
      case PeerMessage::Kind::kFailure:
        verdict =
            ledger_.OnFailure(peer, Status(static_cast<StatusCode>(message.code), message.text));
        break;
    }
    peer_reported_.notify_all();
  }
  if (answers) links_->Send(peer, answer);
  if (!verdict.ok()) listener_.fail(verdict);
}

void CallWatch::ReportLeftRank() {
  Status left;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (left_.ok() || (MonoNow() < left_until_ && !ledger_.has_any_died())) return;
    left = std::exchange(left_, OkStatus());
  }
  listener_.fail(left);
}

void CallWatch::AwaitFinalReports(std::unique_lock<std::mutex>& lock) {
  if (left_until_ == MonoTime::Never()) return;
  // Once a rank has died, a rank that left is only another victim, so there is no wait.
  WaitFor(peer_reported_, lock, left_until_ - MonoNow(),
          [this] { return has_left_ || ledger_.has_any_died(); });
}

void CallWatch::OnConnectionEnd(int peer, LinkEnd end) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ledger_.OnConnectionEnd(peer, end == LinkEnd::kAltered);
    peer_reported_.notify_all();
  }
  // If a process ended, the data that it sent still arrives, followed by the connection's end.
  if (end == LinkEnd::kOutOfReach) listener_.lose(peer);
}

void CallWatch::Run() {
  const PeerLinks::Listener listener = {
      [this](int peer, const PeerMessage& message) { OnMessage(peer, message); },
      [this](int peer, LinkEnd end) { OnConnectionEnd(peer, end); }};
  uint64_t last_call = 0;
  uint32_t looks = 0;  // at the same call, one each interval
  MonoTime next = MonoNow() + kStallCheckInterval;
  while (!stopping_) {
    links_->Poll(armed_ ? std::max(next - MonoNow(), absl::ZeroDuration()) + absl::Milliseconds(1)
                        : absl::InfiniteDuration(),
                 listener);
    ReportLeftRank();
    if (MonoNow() < next) continue;
    next = MonoNow() + kStallCheckInterval;
    bool is_old = false, is_busy = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const uint64_t call = ledger_.own().call;
      is_busy = ledger_.is_running() || messages_ > 0;
      is_old = ledger_.is_running() && call == last_call;
      // A call that begins from here on arms the thread again.
      if (!is_busy && call == last_call) armed_ = false;
      last_call = call;
    }
    looks = is_old ? looks + 1 : 0;
    const bool has_doubled = (looks & (looks - 1)) == 0;
    if (is_old && has_doubled) SendReport(PeerMessage::Kind::kCall);
  }
}

bool CallWatch::IsUndisturbed() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ledger_.is_undisturbed();
}

Status CallWatch::ExplainLoss(const std::set<int>& ranks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ledger_.ExplainLoss(ranks);
}

Status CallWatch::Explain(const std::set<int>& ranks, const Status& guess, bool may_wait) {
  if (guess.code() == StatusCode::kDeadlineExceeded) return ExplainDeadline(guess);
  return AwaitReason([&] { return ledger_.ExplainLoss(ranks); }, guess, may_wait);
}

Status CallWatch::ExplainMessage(int peer, const Status& guess) {
  return AwaitReason([&] { return ledger_.ExplainMessageLoss(peer); }, guess, /*may_wait=*/true);
}

Status CallWatch::AwaitReason(const std::function<Status()>& known, const Status& guess,
                              bool may_wait) {
  if (may_wait) SendReport(PeerMessage::Kind::kQuestion);
  std::unique_lock<std::mutex> lock(mutex_);
  WaitFor(peer_reported_, lock, may_wait ? kReasonTimeout : absl::ZeroDuration(),
          [&] { return has_left_ || !known().ok(); });
  const Status reason = known();
  if (may_wait && reason.code() == StatusCode::kAborted) AwaitFinalReports(lock);
  return reason.ok() ? guess : reason;
}

Status CallWatch::ExplainDeadline(const Status& guess) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!ledger_.is_running()) return guess;
    ledger_.ForgetAnswers();
  }
  SendReport(PeerMessage::Kind::kQuestion);
  std::unique_lock<std::mutex> lock(mutex_);
  WaitFor(peer_reported_, lock, kAnswerTimeout,
          [this] { return has_left_ || ledger_.HaveAllAnswered() || !ledger_.failure().ok(); });
  if (!ledger_.failure().ok()) return ledger_.failure();
  const std::string missing = ledger_.Missing();
  return missing.empty() ? guess : DeadlineExceededError(missing);
}

namespace {

// The number of ranks that one error names.
constexpr size_t kMaxNamed = 4;

std::string Shortened(absl::string_view text) {
  if (text.size() <= kMaxCallText) return std::string(text);
  constexpr size_t kHashText = 18;
  uint64_t hash = 1469598103934665603u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return absl::StrCat(text.substr(0, kMaxCallText - kHashText), " #", absl::Hex(hash));
}

std::string WithArticle(absl::string_view call) {
  return absl::StrCat(absl::StartsWith(call, "a") ? "an " : "a ", call);
}

}  // namespace

const std::string& CallLedger::TextOf(uint64_t call) const {
  static const std::string& none = *new std::string;
  const bool known = call > 0 && call <= own_.call && own_.call - call < kRememberedCalls;
  return known ? texts_[call % kRememberedCalls] : none;
}

Status CallLedger::Begin(absl::string_view text) {
  ++own_.call;
  own_.text = Shortened(text);
  texts_[own_.call % kRememberedCalls] = own_.text;
  RETURN_IF_ERROR(failure_);
  for (size_t peer = 0; peer < peers_.size(); ++peer) {
    const Peer& other = peers_[peer];
    if (other.has_left && other.reported.finished < own_.call) return Left(static_cast<int>(peer));
    if (other.has_reported && other.reported.call == own_.call &&
        other.reported.text != own_.text) {
      return Different(own_.call);
    }
  }
  return OkStatus();
}

Status CallLedger::OnMessage(int peer, CallStatement statement) {
  Peer& other = peers_[peer];
  other.reported = std::move(statement);
  other.has_reported = other.has_answered = true;
  const std::string& mine = TextOf(other.reported.call);
  if (!mine.empty() && mine != other.reported.text) failure_.Update(Different(other.reported.call));
  return failure_;
}

Status CallLedger::Different(uint64_t call) const {
  std::vector<std::string> calls;
  for (size_t rank = 0; rank < peers_.size() && calls.size() < kMaxNamed; ++rank) {
    const bool is_own = static_cast<int>(rank) == rank_;
    const Peer& other = peers_[rank];
    if (!is_own && (!other.has_reported || other.reported.call != call)) continue;
    calls.push_back(
        absl::StrCat("rank ", rank, " ", WithArticle(is_own ? TextOf(call) : other.reported.text)));
  }
  return InvalidArgumentError(absl::StrCat("the ranks made different calls as collective ", call,
                                           ": ", absl::StrJoin(calls, ", ")));
}

Status CallLedger::Left(int peer) const {
  return AbortedError(absl::StrCat(
      "rank ", peer, " has left the communicator after ", peers_[peer].reported.finished,
      " collectives: its program ended, or it aborted or destroyed it"));
}

Status CallLedger::OnLeave(int peer, uint64_t finished) {
  Peer& other = peers_[peer];
  other.has_left = other.has_answered = has_any_left_ = true;
  other.reported.finished = finished;
  return is_running() && finished < own_.call ? Left(peer) : OkStatus();
}

Status CallLedger::OnFailure(int peer, Status reason) {
  peers_[peer].has_answered = true;
  if (failure_.ok()) failure_ = std::move(reason);
  return failure_;
}

void CallLedger::OnConnectionEnd(int peer, bool altered) {
  peers_[peer].is_altered = altered;
  peers_[peer].is_gone = peers_[peer].has_answered = true;
  has_any_died_ = has_any_died_ || !peers_[peer].has_left;
}

Status CallLedger::Gone(int peer) const {
  const Peer& other = peers_[peer];
  if (!other.is_gone || other.has_left) return OkStatus();
  if (other.is_altered) {
    return UnavailableError(absl::StrCat("rank ", peer, ": ", wire::kAlteredText));
  }
  return UnavailableError(
      absl::StrCat("rank ", peer, " is gone: its process ended, or its machine is out of reach"));
}

Status CallLedger::ExplainMessageLoss(int peer) const {
  // This rank detected the damage itself. What other ranks report may be a consequence of it.
  if (peers_[peer].is_altered) return Gone(peer);
  RETURN_IF_ERROR(failure_);
  return peers_[peer].has_left ? Left(peer) : Gone(peer);
}

Status CallLedger::ExplainLoss(const std::set<int>& ranks) const {
  for (const int peer : ranks) RETURN_IF_ERROR(ExplainMessageLoss(peer));
  RETURN_IF_ERROR(failure_);
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    const int peer = static_cast<int>(rank);
    if (peers_[rank].has_left && peers_[rank].reported.finished < own_.call) return Left(peer);
    RETURN_IF_ERROR(Gone(peer));
  }
  return OkStatus();
}

void CallLedger::ForgetAnswers() {
  for (Peer& peer : peers_) peer.has_answered = peer.is_gone || peer.has_left;
}

bool CallLedger::HaveAllAnswered() const {
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    if (static_cast<int>(rank) != rank_ && !peers_[rank].has_answered) return false;
  }
  return true;
}

std::string CallLedger::Missing() const {
  std::vector<std::string> silent, behind;
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    const Peer& other = peers_[rank];
    if (static_cast<int>(rank) == rank_) continue;
    if (other.is_gone && !other.has_left) {
      silent.push_back(absl::StrCat("rank ", rank, " (",
                                    other.is_altered ? wire::kAlteredText : "it is gone", ")"));
    } else if (!other.has_answered) {
      silent.push_back(absl::StrCat(
          "rank ", rank, " (it does not answer: it is stopped, or its machine is out of reach)"));
    } else if (other.reported.call < own_.call) {
      behind.push_back(absl::StrCat(
          "rank ", rank, " (",
          other.reported.call == 0 ? "it has not started any collective"
                                   : absl::StrCat("its last was collective ", other.reported.call,
                                                  ", ", WithArticle(other.reported.text)),
          ")"));
    }
  }
  // If some ranks are silent only they are named, because the others may be waiting for them.
  std::vector<std::string>& named = silent.empty() ? behind : silent;
  if (named.empty()) return "";
  const size_t more = named.size() > kMaxNamed ? named.size() - kMaxNamed : 0;
  named.resize(named.size() - more);
  return absl::StrCat("did not come in time: ", absl::StrJoin(named, ", "),
                      more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

PeerLinks::PeerLinks(std::vector<wire::Connection> connections)
    : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), links_(connections.size()) {
  for (size_t peer = 0; peer < connections.size(); ++peer) {
    links_[peer].connection = std::move(connections[peer]);
  }
}

void PeerLinks::Wake() {
  const uint64_t one = 1;
  // The write fails only if the eventfd's counter is full; then the thread is awake already.
  if (write(wake_.get(), &one, sizeof(one)) < 0) return;
}

void PeerLinks::Send(int peer, const PeerMessage& message, bool is_last) {
  absl::MutexLock lock(&mutex_);
  Link& link = links_[peer];
  if (!link.connection.ok() || (!link.outgoing.empty() && !is_last)) return;
  link.outgoing.append(reinterpret_cast<const char*>(&message), sizeof(message));
  Flush(link);
  if (!link.outgoing.empty()) Wake();
}

void PeerLinks::Flush(Link& link) {
  while (!link.outgoing.empty()) {
    const ssize_t sent = link.connection.Send(link.outgoing);
    if (sent > 0) {
      link.outgoing.erase(0, sent);
    } else if (sent < 0 && errno != EINTR) {
      // The receiving side notices broken connections.
      if (errno != EAGAIN) link.outgoing.clear();
      return;
    }
  }
}

void PeerLinks::Poll(absl::Duration timeout, const Listener& listener) {
  std::vector<pollfd> descriptors = {{wake_.get(), POLLIN, 0}};
  {
    absl::MutexLock lock(&mutex_);
    for (const Link& link : links_) {
      // poll() ignores negative descriptors.
      const short events = link.outgoing.empty() ? POLLIN : POLLIN | POLLOUT;
      descriptors.push_back({link.connection.fd(), events, 0});
    }
  }
  const int64_t millis =
      timeout == absl::InfiniteDuration() ? -1 : absl::ToInt64Milliseconds(timeout);
  if (poll(descriptors.data(), descriptors.size(), static_cast<int>(millis)) <= 0) return;
  uint64_t count = 0;
  if (descriptors[0].revents != 0 && read(wake_.get(), &count, sizeof(count)) < 0) return;
  for (size_t peer = 0; peer < links_.size(); ++peer) {
    const short events = descriptors[peer + 1].revents;
    if ((events & POLLOUT) != 0) {
      absl::MutexLock lock(&mutex_);
      Flush(links_[peer]);
    }
    if ((events & ~POLLOUT) == 0) continue;
    const int error = Receive(static_cast<int>(peer), listener);
    if (error == 0) continue;
    {
      absl::MutexLock lock(&mutex_);
      links_[peer].connection.Close();
      links_[peer].outgoing.clear();
    }
    const bool out_of_reach = error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH;
    listener.on_end(static_cast<int>(peer), error == EBADMSG ? LinkEnd::kAltered
                                            : out_of_reach   ? LinkEnd::kOutOfReach
                                                             : LinkEnd::kClosed);
  }
}

int PeerLinks::Receive(int peer, const Listener& listener) {
  Link& link = links_[peer];
  while (true) {
    char bytes[4 * sizeof(PeerMessage)];
    const ssize_t got = link.connection.Receive(bytes, sizeof(bytes));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return 0;
    if (got <= 0) return got == 0 ? ECONNRESET : errno;
    link.incoming.append(bytes, got);
    while (link.incoming.size() >= sizeof(PeerMessage)) {
      PeerMessage message;
      memcpy(&message, link.incoming.data(), sizeof(message));
      message.text[sizeof(message.text) - 1] = '\0';
      link.incoming.erase(0, sizeof(message));
      listener.on_message(peer, message);
    }
  }
}

}  // namespace cadre::sockets
