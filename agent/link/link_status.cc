#include "agent/link/link_status.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "rpc/channel_arguments.h"

namespace cadre {
namespace {

// Long enough for what a resolver or TLS says, short enough for one line.
constexpr size_t kDetailBytesMax = 300;

struct Symptom {
  // What gRPC 1.51 writes somewhere in its text.
  const char* text;
  absl::StatusCode code;
  // Follows the endpoint.
  const char* meaning;
};

constexpr Symptom kBeforeOpen[] = {
    {"DNS resolution failed", absl::StatusCode::kUnavailable,
     ": the name does not resolve; check the endpoint"},
    {"onnection refused", absl::StatusCode::kUnavailable, ": connection refused"},
    {"o route to host", absl::StatusCode::kUnavailable, ": no route to host"},
    {"etwork is unreachable", absl::StatusCode::kUnavailable, ": network is unreachable"},
    {"ermission denied", absl::StatusCode::kUnavailable, ": not permitted from here"},
    // Before the time-out, because a TLS handshake that times out names both.
    {"http1", absl::StatusCode::kFailedPrecondition, nullptr},
    {"settings frame", absl::StatusCode::kFailedPrecondition, nullptr},
    {"parsing HTTP/2", absl::StatusCode::kFailedPrecondition, nullptr},
    {"SSL_ERROR", absl::StatusCode::kUnavailable,
     ": TLS handshake failed; check that both sides use TLS, with certificates of one ca.pem"},
    {"andshake", absl::StatusCode::kUnavailable,
     ": handshake failed; check that both sides use TLS, or neither does"},
    {"imeout", absl::StatusCode::kUnavailable, ": connection timed out"},
    {"imed out", absl::StatusCode::kUnavailable, ": connection timed out"},
    {"ocket closed", absl::StatusCode::kUnavailable,
     ": the connection was closed; check that both sides use TLS, or neither does"},
    {"onnection reset", absl::StatusCode::kUnavailable, ": the connection was closed"},
};

absl::Status NotOurs(const std::string& endpoint) {
  return absl::FailedPreconditionError(
      absl::StrCat(endpoint, " answers, but is not a cadre server: check the endpoint's port"));
}

absl::Status DescribeUnreached(const std::string& endpoint, const absl::Status& status) {
  if (absl::StartsWith(status.message(), kInReserve) ||
      absl::StartsWith(status.message(), kNoLongerLeads)) {
    return absl::UnavailableError(
        absl::StrCat(endpoint, ": ", status.message().substr(0, kDetailBytesMax)));
  }
  for (const Symptom& symptom : kBeforeOpen) {
    if (!absl::StrContains(status.message(), symptom.text)) continue;
    if (symptom.meaning == nullptr) return NotOurs(endpoint);
    return absl::Status(symptom.code, absl::StrCat("cannot reach ", endpoint, symptom.meaning));
  }
  return absl::UnavailableError(
      absl::StrCat("cannot reach ", endpoint, ": ", status.message().substr(0, kDetailBytesMax)));
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

}  // namespace cadre
