#include "rendezvous/service/token_check.h"

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "rpc/channels.h"

namespace cadre::service {

absl::StatusOr<Bearer> CheckToken(const grpc::ServerContext& context, const std::string& token) {
  if (token.empty()) return Bearer();
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(rpc::kTokenMetadata);
  if (found == metadata.end()) {
    return absl::UnauthenticatedError(
        "this server wants a token and none came: give its token file with --token-file");
  }
  const absl::string_view given(found->second.data(), found->second.size());
  std::optional<Bearer> bearer = BearerOf(token, given);
  if (bearer.has_value()) return *std::move(bearer);
  return absl::UnauthenticatedError(
      "the token is not this server's, or was made by an earlier version: give its token file with "
      "--token-file, and make users' anew with 'cadre token new'");
}

}  // namespace cadre::service
