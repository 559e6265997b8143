#include "rendezvous/service/token_check.h"

#include "base/token.h"
#include "proto/channel_arguments.h"

namespace cadre {

absl::Status CheckToken(const grpc::ServerContext& context, const std::string& token) {
  if (token.empty()) return absl::OkStatus();
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(kTokenMetadata);
  if (found == metadata.end()) {
    return absl::UnauthenticatedError(
        "this server wants a token and none came: give its token file with --token-file");
  }
  const absl::string_view given(found->second.data(), found->second.size());
  if (EqualConstantTime(given, token)) return absl::OkStatus();
  return absl::UnauthenticatedError(
      "the token is not this server's: give its token file with --token-file");
}

}  // namespace cadre
