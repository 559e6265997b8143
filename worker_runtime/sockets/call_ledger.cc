#include "worker_runtime/sockets/call_ledger.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "worker_runtime/wire/connection.h"

namespace cadre::sockets {
namespace {

// Names in one error.
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
    if (other.has_left && other.told.finished < own_.call) return Left(static_cast<int>(peer));
    if (other.has_told && other.told.call == own_.call && other.told.text != own_.text) {
      return Different(own_.call);
    }
  }
  return OkStatus();
}

Status CallLedger::Hear(int peer, CallStatement statement) {
  Peer& other = peers_[peer];
  other.told = std::move(statement);
  other.has_told = other.has_answered = true;
  const std::string& mine = TextOf(other.told.call);
  if (!mine.empty() && mine != other.told.text) failure_.Update(Different(other.told.call));
  return failure_;
}

Status CallLedger::Different(uint64_t call) const {
  std::vector<std::string> calls;
  for (size_t rank = 0; rank < peers_.size() && calls.size() < kMaxNamed; ++rank) {
    const bool is_own = static_cast<int>(rank) == rank_;
    const Peer& other = peers_[rank];
    if (!is_own && (!other.has_told || other.told.call != call)) continue;
    calls.push_back(
        absl::StrCat("rank ", rank, " ", WithArticle(is_own ? TextOf(call) : other.told.text)));
  }
  return InvalidArgumentError(absl::StrCat("the ranks made different calls as collective ", call,
                                           ": ", absl::StrJoin(calls, ", ")));
}

Status CallLedger::Left(int peer) const {
  return AbortedError(
      absl::StrCat("rank ", peer, " has left the communicator after ", peers_[peer].told.finished,
                   " collectives: its program ended, or it aborted or destroyed it"));
}

Status CallLedger::HearLeave(int peer, uint64_t finished) {
  Peer& other = peers_[peer];
  other.has_left = other.has_answered = has_any_left_ = true;
  other.told.finished = finished;
  return is_running() && finished < own_.call ? Left(peer) : OkStatus();
}

Status CallLedger::HearFailure(int peer, Status reason) {
  peers_[peer].has_answered = true;
  if (failure_.ok()) failure_ = std::move(reason);
  return failure_;
}

void CallLedger::HearEnd(int peer, bool altered) {
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

Status CallLedger::WhyMessageLost(int peer) const {
  // This rank saw that itself; what others tell may have followed from it.
  if (peers_[peer].is_altered) return Gone(peer);
  RETURN_IF_ERROR(failure_);
  return peers_[peer].has_left ? Left(peer) : Gone(peer);
}

Status CallLedger::WhyLost(const std::set<int>& ranks) const {
  for (const int peer : ranks) RETURN_IF_ERROR(WhyMessageLost(peer));
  RETURN_IF_ERROR(failure_);
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    const int peer = static_cast<int>(rank);
    if (peers_[rank].has_left && peers_[rank].told.finished < own_.call) return Left(peer);
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
    } else if (other.told.call < own_.call) {
      behind.push_back(absl::StrCat("rank ", rank, " (",
                                    other.told.call == 0
                                        ? "it has not started any collective"
                                        : absl::StrCat("its last was collective ", other.told.call,
                                                       ", ", WithArticle(other.told.text)),
                                    ")"));
    }
  }
  // Who waits for a silent one is not to blame.
  std::vector<std::string>& named = silent.empty() ? behind : silent;
  if (named.empty()) return "";
  const size_t more = named.size() > kMaxNamed ? named.size() - kMaxNamed : 0;
  named.resize(named.size() - more);
  return absl::StrCat("did not come in time: ", absl::StrJoin(named, ", "),
                      more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

}  // namespace cadre::sockets
