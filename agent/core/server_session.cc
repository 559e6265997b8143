#include "agent/core/server_session.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/duration.h"
#include "rpc/store_reply.h"
#include "rpc/versions.h"

namespace cadre::agent {
namespace {

constexpr absl::Duration kDefaultStopGrace = absl::Seconds(30);

}  // namespace

ServerSession::ServerSession(const AgentConfig& config, CommandBuffer& out)
    : config_(config),
      out_(out),
      server_id_(config.adopted ? config.adopted->generation.server_id : 0),
      spec_(config.join.spec()),
      fence_(config.strict_fencing, config.adopted ? config.adopted->held_until : MonoTime()) {}

void ServerSession::OnConnected(MonoTime now, const GenerationId& running, uint32_t held_port) {
  state_ = State::kConnected;
  lost_for_good_ = false;
  welcome_late_at_ = now + kWelcomeIsLate;
  out_.set_connected(true);
  fence_.OnConnected(now);
  v1::NodeMessage message;
  *message.mutable_join() = config_.join;
  *message.mutable_join()->mutable_version() = rpc::ThisVersion();
  // The held port is in use by the workers while they run.
  message.mutable_join()->set_held_port(running.exists() ? 0 : held_port);
  out_.Send(std::move(message), running);
}

void ServerSession::OnDisconnected(MonoTime now, bool for_good) {
  state_ = State::kDown;
  lost_for_good_ = for_good;
  out_.set_connected(false);
  renew_at_ = MonoTime::Never();
  welcome_late_at_ = MonoTime::Never();
  NoteIfAway(now);
}

void ServerSession::NoteIfAway(MonoTime now) {
  if (!away_since_ && !welcomed()) away_since_ = now;
}

bool ServerSession::OnWelcome(MonoTime now, const v1::Welcome& welcome) {
  const bool known = ever_welcomed_ || config_.adopted.has_value();
  const bool server_lost_state = known && welcome.server_id() != server_id_;
  away_reason_.clear();
  welcome_late_at_ = MonoTime::Never();
  state_ = State::kWelcomed;
  ever_welcomed_ = true;
  away_since_.reset();
  server_id_ = welcome.server_id();
  spec_ = welcome.spec();
  const absl::Duration offered = FromProto(welcome.lease());
  lease_ = offered > absl::ZeroDuration() ? offered : kDefaultLease;
  renew_at_ = now + lease_ / 3;
  fence_.OnWelcome(lease_);
  return server_lost_state;
}

void ServerSession::RenewIfDue(MonoTime now, const GenerationId& running) {
  if (now < renew_at_) return;
  v1::NodeMessage message;
  message.mutable_renew()->set_number(fence_.NumberOfRenewal(now));
  if (usage_.has_value()) {
    *message.mutable_renew()->mutable_usage() = *std::exchange(usage_, std::nullopt);
  }
  out_.Send(std::move(message), running);
  renew_at_ = now + lease_ / 3;
}

bool ServerSession::IsNewReason(const std::string& reason) {
  if (reason == away_reason_) return false;
  away_reason_ = reason;
  return true;
}

absl::Duration ServerSession::StopGrace() const {
  const v1::Timeouts& timeouts = spec_.timeouts();
  return timeouts.has_stop_grace() ? FromProto(timeouts.stop_grace()) : kDefaultStopGrace;
}

std::string ServerSession::ServerName() const {
  return config_.server.empty() ? "the rendezvous server"
                                : absl::StrCat("the rendezvous server at ", config_.server);
}

namespace {

// The fraction of the lease, counted from the sending of the last message that the server answered,
// after which the workers are killed. The rest of the lease is for their death.
constexpr double kFenceFraction = 0.8;
// The number of unanswered renewals that are tracked.
constexpr size_t kRenewalsMax = 16;

}  // namespace

void Fence::OnConnected(MonoTime now) {
  join_sent_at_ = now;
  unanswered_.clear();
}

void Fence::OnWelcome(absl::Duration lease) {
  lease_ = lease;
  confirmed_at_ = std::max(confirmed_at_, join_sent_at_);
}

uint64_t Fence::NumberOfRenewal(MonoTime now) {
  if (!strict_) return 0;
  unanswered_[++renewals_] = now;
  if (unanswered_.size() > kRenewalsMax) unanswered_.erase(unanswered_.begin());
  return renewals_;
}

bool Fence::OnAnswer(uint64_t number) {
  const auto sent = unanswered_.find(number);
  if (sent == unanswered_.end()) return false;
  confirmed_at_ = std::max(confirmed_at_, sent->second);
  unanswered_.erase(unanswered_.begin(), std::next(sent));
  return true;
}

void Fence::OnSleep(absl::Duration duration) {
  for (MonoTime* moment : {&held_until_, &join_sent_at_, &confirmed_at_}) {
    *moment = *moment + -duration;
  }
  for (auto& [number, sent] : unanswered_) sent = sent + -duration;
}

MonoTime Fence::at() const {
  return strict_ ? std::max(held_until_, confirmed_at_ + timeout()) : MonoTime::Never();
}

absl::Duration Fence::timeout() const { return lease_ * kFenceFraction; }

absl::StatusOr<bool> PendingStoreCalls::Add(const v1::StoreRequest& request) {
  const Key key{request.client(), request.request_id()};
  if (waiting_.count(key) != 0) return false;
  const size_t bytes = request.ByteSizeLong();
  if (waiting_.size() >= kMaxPendingStoreCalls || bytes_ + bytes > kMaxPendingStoreBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this node already has ", waiting_.size(),
                     " unanswered store operations; wait for some of them"));
  }
  waiting_.emplace(key, request);
  bytes_ += bytes;
  return true;
}

bool PendingStoreCalls::OnReply(const v1::StoreReply& reply) {
  const auto found = waiting_.find({reply.client(), reply.request_id()});
  if (found == waiting_.end()) return false;
  const size_t bytes = found->second.ByteSizeLong();
  CADRE_CHECK(bytes <= bytes_, "a pending store operation was not counted");
  bytes_ -= bytes;
  waiting_.erase(found);
  CADRE_CHECK(!waiting_.empty() || bytes_ == 0, bytes_, " bytes are counted without operations");
  return true;
}

std::vector<v1::StoreReply> PendingStoreCalls::FailAll(const absl::Status& status) {
  std::vector<v1::StoreReply> replies;
  for (const auto& [key, request] : waiting_) {
    replies.push_back(rpc::StoreErrorReply(request, status));
  }
  waiting_.clear();
  bytes_ = 0;
  return replies;
}

std::vector<v1::StoreRequest> PendingStoreCalls::All() const {
  std::vector<v1::StoreRequest> requests;
  for (const auto& [key, request] : waiting_) requests.push_back(request);
  return requests;
}

}  // namespace cadre::agent
