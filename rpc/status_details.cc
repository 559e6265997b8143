#include "rpc/status_details.h"

#include "absl/strings/cord.h"
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

}  // namespace cadre::rpc
