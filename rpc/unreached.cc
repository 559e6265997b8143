#include "rpc/unreached.h"

#include "absl/strings/match.h"

namespace cadre::rpc {
namespace {

struct Symptom {
  // Stands somewhere in the text.
  const char* text;
  Unreached why;
};

constexpr Symptom kSymptoms[] = {
    {"DNS resolution failed", Unreached::kUnknownName},
    {"onnection refused", Unreached::kRefused},
    {"o route to host", Unreached::kNoRoute},
    {"etwork is unreachable", Unreached::kNetworkUnreachable},
    {"ermission denied", Unreached::kNotPermitted},
    // Before the time-out, because a TLS handshake that times out names both.
    {"http1", Unreached::kNotGrpc},
    {"settings frame", Unreached::kNotGrpc},
    {"parsing HTTP/2", Unreached::kNotGrpc},
    {"Custom verification check failed", Unreached::kOtherKey},
    {"SSL_ERROR", Unreached::kTls},
    {"andshaker shutdown", Unreached::kHandshakeGivenUp},
    {"andshake", Unreached::kHandshake},
    {"imeout", Unreached::kTimedOut},
    {"imed out", Unreached::kTimedOut},
    {"ocket closed", Unreached::kClosedWithoutAWord},
    {"onnection reset", Unreached::kReset},
};

}  // namespace

Unreached WhyUnreached(absl::string_view text) {
  for (const Symptom& symptom : kSymptoms) {
    if (absl::StrContains(text, symptom.text)) return symptom.why;
  }
  return Unreached::kOther;
}

bool NeverConnected(absl::string_view text) {
  return absl::StrContains(text, "failed to connect") ||
         WhyUnreached(text) == Unreached::kUnknownName;
}

}  // namespace cadre::rpc
