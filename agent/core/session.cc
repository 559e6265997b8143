#include "agent/core/session.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/duration.h"
#include "rpc/versions.h"

namespace cadre::agent {
namespace {

constexpr absl::Duration kDefaultStopGrace = absl::Seconds(30);

}  // namespace

Session::Session(const AgentConfig& config, Outbox& out)
    : config_(config),
      out_(out),
      server_id_(config.adopted ? config.adopted->generation.server_id : 0),
      spec_(config.join.spec()),
      fence_(config.strict_fencing, config.adopted ? config.adopted->held_until : MonoTime()) {}

void Session::Connected(MonoTime now, const GenerationId& runs, uint32_t held_port) {
  state_ = State::kConnected;
  lost_for_good_ = false;
  silent_at_ = now + kWelcomeIsLate;
  out_.set_connected(true);
  fence_.Connected(now);
  v1::NodeMessage message;
  *message.mutable_join() = config_.join;
  *message.mutable_join()->mutable_version() = rpc::ThisVersion();
  // The port is the workers' while they run.
  message.mutable_join()->set_held_port(runs.exists() ? 0 : held_port);
  out_.Up(std::move(message), runs);
}

void Session::Lost(MonoTime now, bool for_good) {
  state_ = State::kDown;
  lost_for_good_ = for_good;
  out_.set_connected(false);
  renew_at_ = MonoTime::Never();
  silent_at_ = MonoTime::Never();
  Count(now);
}

void Session::Count(MonoTime now) {
  if (!away_since_ && !welcomed()) away_since_ = now;
}

bool Session::Welcomed(MonoTime now, const v1::Welcome& welcome) {
  const bool known = ever_welcomed_ || config_.adopted.has_value();
  const bool forgot_us = known && welcome.server_id() != server_id_;
  away_reason_.clear();
  silent_at_ = MonoTime::Never();
  state_ = State::kWelcomed;
  ever_welcomed_ = true;
  away_since_.reset();
  server_id_ = welcome.server_id();
  out_.set_server(rpc::VersionIn(welcome));
  spec_ = welcome.spec();
  const absl::Duration offered = FromProto(welcome.lease());
  lease_ = offered > absl::ZeroDuration() ? offered : kDefaultLease;
  renew_at_ = now + lease_ / 3;
  fence_.Welcomed(lease_);
  return forgot_us;
}

void Session::RenewIfDue(MonoTime now, const GenerationId& runs) {
  if (now < renew_at_) return;
  v1::NodeMessage message;
  message.mutable_renew()->set_number(fence_.NumberOfRenewal(now));
  if (usage_.has_value()) {
    *message.mutable_renew()->mutable_usage() = *std::exchange(usage_, std::nullopt);
  }
  out_.Up(std::move(message), runs);
  renew_at_ = now + lease_ / 3;
}

bool Session::IsNewReason(const std::string& reason) {
  if (reason == away_reason_) return false;
  away_reason_ = reason;
  return true;
}

absl::Duration Session::StopGrace() const {
  const v1::Timeouts& timeouts = spec_.timeouts();
  return timeouts.has_stop_grace() ? FromProto(timeouts.stop_grace()) : kDefaultStopGrace;
}

std::string Session::Server() const {
  return config_.server.empty() ? "the rendezvous server"
                                : absl::StrCat("the rendezvous server at ", config_.server);
}

}  // namespace cadre::agent
