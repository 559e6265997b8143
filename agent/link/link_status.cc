#include "agent/link/link_status.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "rpc/status_details.h"
#include "rpc/unreached.h"

namespace cadre::agent {
namespace {

// Long enough for what a resolver or TLS says, short enough for one line.
constexpr size_t kDetailBytesMax = 300;

// Follows the endpoint; null: gRPC's own text says more.
const char* Meaning(rpc::Unreached why) {
  switch (why) {
    case rpc::Unreached::kUnknownName:
      return ": the name does not resolve; check the endpoint";
    case rpc::Unreached::kRefused:
      return ": connection refused";
    case rpc::Unreached::kNoRoute:
      return ": no route to host";
    case rpc::Unreached::kNetworkUnreachable:
      return ": network is unreachable";
    case rpc::Unreached::kNotPermitted:
      return ": not permitted from here";
    case rpc::Unreached::kTls:
      return ": TLS handshake failed; check that both sides have a token file, or certificates of "
             "one ca.pem that have not ended (--tls-dir), or --insecure";
    case rpc::Unreached::kHandshake:
    case rpc::Unreached::kHandshakeGivenUp:
      return ": handshake failed; check that both sides use TLS, or neither does (--token-file, "
             "--tls-dir, --insecure)";
    case rpc::Unreached::kTimedOut:
      return ": connection timed out";
    case rpc::Unreached::kClosedWithoutAWord:
      return ": the connection was closed; check that both sides use TLS, or neither does "
             "(--token-file, --tls-dir, --insecure)";
    case rpc::Unreached::kReset:
      return ": the connection was closed";
    case rpc::Unreached::kOtherKey:
    case rpc::Unreached::kNotGrpc:
    case rpc::Unreached::kOther:
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
  const rpc::Unreached why = rpc::WhyUnreached(status.message());
  if (why == rpc::Unreached::kNotGrpc) return NotOurs(endpoint);
  if (why == rpc::Unreached::kOtherKey) {
    // As a token that the server refuses: it is one or the other's mistake, or a stranger.
    return absl::UnauthenticatedError(absl::StrCat(
        "whoever answers at ", endpoint,
        " does not have the key that the token names, and was not given the token: the token is "
        "another server's, or that is not your server"));
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
      // A server of ours has said so in its initial metadata.
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
         rpc::WhyUnreached(status.message()) == rpc::Unreached::kRefused;
}

absl::Status LauncherIsGone(const std::string& endpoint) {
  return absl::NotFoundError(
      absl::StrCat("cannot reach ", endpoint,
                   ": connection refused; the launcher that served there has "
                   "ended without a word, and kept no state"));
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

}  // namespace cadre::agent
