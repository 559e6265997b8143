// What the status of a failed call means: details that a server adds, and why it was not reached.
#include "rpc/status_details.h"

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "proto/status.pb.h"

namespace cadre::rpc {
namespace {

constexpr char kTypeUrl[] = "type.googleapis.com/cadre.v1.StatusDetails";

}  // namespace

absl::Status NotLeading(absl::string_view message) {
  v1::StatusDetails details;
  details.set_not_leading(true);
  return WithSerializedDetails(absl::UnavailableError(message), details.SerializeAsString());
}

bool IsNotLeading(const absl::Status& status) {
  v1::StatusDetails details;
  return details.ParseFromString(SerializedDetails(status)) && details.not_leading();
}

std::string SerializedDetails(const absl::Status& status) {
  const auto payload = status.GetPayload(kTypeUrl);
  return payload.has_value() ? std::string(*payload) : "";
}

absl::Status WithSerializedDetails(absl::Status status, absl::string_view details) {
  if (!details.empty()) status.SetPayload(kTypeUrl, absl::Cord(details));
  return status;
}

namespace {

struct Symptom {
  // Occurs anywhere in the message.
  const char* text;
  ConnectError why;
};

constexpr Symptom kSymptoms[] = {
    {"DNS resolution failed", ConnectError::kUnknownName},
    {"onnection refused", ConnectError::kRefused},
    {"o route to host", ConnectError::kNoRoute},
    {"etwork is unreachable", ConnectError::kNetworkUnreachable},
    {"ermission denied", ConnectError::kNotPermitted},
    // This comes before the time-out, because a TLS handshake that times out mentions both.
    {"http1", ConnectError::kNotGrpc},
    {"settings frame", ConnectError::kNotGrpc},
    {"parsing HTTP/2", ConnectError::kNotGrpc},
    {"Custom verification check failed", ConnectError::kOtherKey},
    {"SSL_ERROR", ConnectError::kTls},
    {"andshaker shutdown", ConnectError::kHandshakeTimedOut},
    {"andshake", ConnectError::kHandshake},
    {"imeout", ConnectError::kTimedOut},
    {"imed out", ConnectError::kTimedOut},
    {"ocket closed", ConnectError::kClosedSilently},
    {"onnection reset", ConnectError::kReset},
};

}  // namespace

ConnectError ConnectErrorOf(absl::string_view text) {
  for (const Symptom& symptom : kSymptoms) {
    if (absl::StrContains(text, symptom.text)) return symptom.why;
  }
  return ConnectError::kOther;
}

bool NeverConnected(absl::string_view text) {
  return absl::StrContains(text, "failed to connect") ||
         ConnectErrorOf(text) == ConnectError::kUnknownName;
}

}  // namespace cadre::rpc
