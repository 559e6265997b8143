#include "rendezvous/service/admission.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "rpc/channels.h"
#include "rpc/status_details.h"
#include "rpc/tls/credentials.h"

namespace cadre::service {

absl::StatusOr<Bearer> CheckToken(const grpc::ServerContext& context, const std::string& token) {
  if (token.empty()) return Bearer();
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(rpc::kTokenMetadata);
  if (found == metadata.end()) {
    return absl::UnauthenticatedError(
        "this server requires a token and the call has none: give the server's token file with "
        "--token-file");
  }
  const absl::string_view given(found->second.data(), found->second.size());
  std::optional<Bearer> bearer = VerifiedBearer(token, given);
  if (bearer.has_value()) return *std::move(bearer);
  return absl::UnauthenticatedError(
      "the token is not one of this server's, or an earlier version made it: give the server's "
      "token "
      "file with --token-file, and make users' tokens anew with 'cadre token new'");
}

AdmissionControl::AdmissionControl(std::shared_ptr<host::CoreThread> core, std::string token,
                                   bool wants_certificate)
    : wants_certificate_(wants_certificate),
      token_(std::move(token)),
      core_(std::move(core)),
      refusal_(rpc::NotLeading(absl::StrCat(kStandby, ": it has just started"))) {}

void AdmissionControl::SetToken(std::string token) {
  const absl::MutexLock lock(&mutex_);
  token_ = std::move(token);
}

std::string AdmissionControl::token() const {
  const absl::MutexLock lock(&mutex_);
  return token_;
}

void AdmissionControl::Serve(std::shared_ptr<host::CoreThread> core) {
  const absl::MutexLock lock(&mutex_);
  core_ = std::move(core);
}

void AdmissionControl::Refuse(absl::Status why) {
  const absl::MutexLock lock(&mutex_);
  core_.reset();
  refusal_ = std::move(why);
}

absl::StatusOr<std::shared_ptr<host::CoreThread>> AdmissionControl::Serving() const {
  const absl::MutexLock lock(&mutex_);
  if (core_ == nullptr) return refusal_;
  return core_;
}

absl::StatusOr<Admitted> AdmissionControl::Admit(const grpc::ServerContext& context) const {
  Admitted admitted;
  ASSIGN_OR_RETURN(admitted.bearer, CheckToken(context, token()));
  RETURN_IF_ERROR(CheckCertificate(context, admitted.bearer));
  ASSIGN_OR_RETURN(admitted.core, Serving());
  RETURN_IF_ERROR(CheckTokenServer(admitted.bearer, admitted.core->server_id()));
  admitted.token_ended = CheckTokenExpiry(admitted.bearer, absl::Now());
  return admitted;
}

absl::Status AdmissionControl::CheckCertificate(const grpc::ServerContext& context,
                                                const Bearer& bearer) const {
  // The launcher of a part runs as the part's user, who must not have the node's key.
  if (!wants_certificate_ || bearer.kind == Bearer::Kind::kPart || rpc::HasCertificate(context)) {
    return absl::OkStatus();
  }
  return absl::UnauthenticatedError(
      "this server requires a client certificate and the call has none: give yours with --tls-dir");
}

std::optional<std::string> RefusalLog::Line(MonoTime now, const std::string& address,
                                            const std::string& why) {
  for (auto it = logged_.begin(); it != logged_.end();) {
    it = now - it->second < kRefusalLogInterval ? std::next(it) : logged_.erase(it);
  }
  std::string line = absl::StrCat("refused ", address, ": ", why);
  if (logged_.size() >= kRefusalsLoggedMax || !logged_.emplace(line, now).second) {
    ++not_logged_;
    return std::nullopt;
  }
  const uint64_t not_logged = std::exchange(not_logged_, 0);
  if (not_logged > 0) absl::StrAppend(&line, " (and ", not_logged, " more before)");
  return line;
}

}  // namespace cadre::service
