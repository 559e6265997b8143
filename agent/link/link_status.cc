#include "agent/link/link_status.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "rpc/channels.h"
#include "rpc/status_details.h"

namespace cadre::agent {
namespace {

// Long enough for an error of a resolver or TLS, short enough for one line.
constexpr size_t kDetailBytesMax = 300;

// The text that follows the endpoint; null: gRPC's own text is more specific.
const char* Meaning(rpc::ConnectError why) {
  switch (why) {
    case rpc::ConnectError::kUnknownName:
      return ": the name does not resolve; check the endpoint";
    case rpc::ConnectError::kRefused:
      return ": connection refused";
    case rpc::ConnectError::kNoRoute:
      return ": no route to host";
    case rpc::ConnectError::kNetworkUnreachable:
      return ": network is unreachable";
    case rpc::ConnectError::kNotPermitted:
      return ": not permitted from here";
    case rpc::ConnectError::kTls:
      return ": TLS handshake failed; check that both sides have a token file, or certificates of "
             "one ca.pem that have not ended (--tls-dir), or --insecure";
    case rpc::ConnectError::kHandshake:
    case rpc::ConnectError::kHandshakeTimedOut:
      return ": handshake failed; check that both sides use TLS, or neither does (--token-file, "
             "--tls-dir, --insecure)";
    case rpc::ConnectError::kTimedOut:
      return ": connection timed out";
    case rpc::ConnectError::kClosedSilently:
      return ": the connection was closed; check that both sides use TLS, or neither does "
             "(--token-file, --tls-dir, --insecure)";
    case rpc::ConnectError::kReset:
      return ": the connection was closed";
    case rpc::ConnectError::kOtherKey:
    case rpc::ConnectError::kNotGrpc:
    case rpc::ConnectError::kOther:
      break;
  }
  return nullptr;
}

absl::Status NotOurs(const std::string& endpoint) {
  return absl::FailedPreconditionError(
      absl::StrCat(endpoint, " answers, but is not a cadre server: check the endpoint's port"));
}

absl::Status DescribeUnreached(const std::string& endpoint, const absl::Status& status) {
  const absl::string_view text = status.message().substr(0, kDetailBytesMax);
  if (rpc::IsNotLeading(status)) {
    return absl::UnavailableError(absl::StrCat(endpoint, ": ", text));
  }
  const rpc::ConnectError why = rpc::ConnectErrorOf(status.message());
  if (why == rpc::ConnectError::kNotGrpc) return NotOurs(endpoint);
  if (why == rpc::ConnectError::kOtherKey) {
    // The same code as for a refused token: either side may be misconfigured, or the server is an
    // impostor.
    return absl::UnauthenticatedError(absl::StrCat(
        "the server at ", endpoint,
        " does not have the key that the token names, and was not given the token: the token "
        "belongs to another server, or this is not your server"));
  }
  const char* const meaning = Meaning(why);
  if (meaning == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot reach ", endpoint, ": ", text));
  }
  return absl::UnavailableError(absl::StrCat("cannot reach ", endpoint, meaning));
}

}  // namespace

absl::Status CheckEndpoint(const std::string& endpoint) {
  const size_t colon = endpoint.rfind(':');
  int port = 0;
  const bool good = colon != std::string::npos && colon > 0 &&
                    absl::SimpleAtoi(endpoint.substr(colon + 1), &port) && port >= 1 &&
                    port <= 65535;
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("endpoint \"", endpoint.substr(0, kDetailBytesMax),
                                                 "\" is not host:port (port 1..65535)"));
}

absl::Status DescribeEnd(const std::string& endpoint, const absl::Status& status, bool opened) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      // A Cadre server identifies itself in its initial metadata.
      if (!opened) return NotOurs(endpoint);
      return absl::UnavailableError(absl::StrCat("the server at ", endpoint, " closed the stream"));
    case absl::StatusCode::kUnimplemented:
      return NotOurs(endpoint);
    case absl::StatusCode::kUnavailable:
      if (!opened) return DescribeUnreached(endpoint, status);
      return absl::UnavailableError(absl::StrCat("lost the connection to the server at ", endpoint,
                                                 ": ",
                                                 status.message().substr(0, kDetailBytesMax)));
    default:
      return absl::Status(status.code(),
                          absl::StrCat("the server at ", endpoint, ": ", status.message()));
  }
}

bool IsRefused(const absl::Status& status) {
  return absl::IsUnavailable(status) &&
         rpc::ConnectErrorOf(status.message()) == rpc::ConnectError::kRefused;
}

absl::Status LauncherIsGone(const std::string& endpoint) {
  return absl::NotFoundError(
      absl::StrCat("cannot reach ", endpoint,
                   ": connection refused; the launcher that ran the server there "
                   "has ended without a verdict, and kept no state"));
}

absl::Status NoneReached(const std::vector<absl::Status>& failed) {
  if (failed.size() == 1) return failed[0];
  std::string text;
  for (const absl::Status& status : failed) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", status.message());
  }
  return absl::UnavailableError(text);
}

bool IsFinal(const absl::Status& status) {
  return absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status) ||
         absl::IsInvalidArgument(status);
}

RetryRule::RetryRule(bool returns_after_refusal)
    : returns_after_refusal_(returns_after_refusal), backoff_(rpc::kReconnectBackoffMin) {}

absl::Status RetryRule::FilesUnusable(const absl::Status& status) const {
  return ever_welcomed_ ? absl::UnavailableError(status.message()) : status;
}

absl::Status RetryRule::TokenReplaced(const absl::Status& refused) {
  return absl::UnavailableError(refused.message());
}

RetryRule::Next RetryRule::RoundEnded(const absl::Status& status, bool welcomed) {
  ever_welcomed_ = ever_welcomed_ || welcomed;
  // An opened stream is not enough: a server whose disk is full answers, but welcomes no node.
  if (welcomed) backoff_ = rpc::kReconnectBackoffMin;
  Next next = {status, true, backoff_};
  const bool refused = IsFinal(status);
  backoff_ = std::min(2 * backoff_, refused ? kRefusedBackoffMax : rpc::kReconnectBackoffMax);
  if (ever_welcomed_ && returns_after_refusal_) return next;
  if (ever_welcomed_ && absl::IsUnauthenticated(status)) {
    next.status = absl::UnavailableError(status.message());
    return next;
  }
  next.retries = !refused;
  return next;
}

}  // namespace cadre::agent
