// Finds out whose token a call carries. Thread safe.
#ifndef CADRE_RENDEZVOUS_SERVICE_TOKEN_CHECK_H_
#define CADRE_RENDEZVOUS_SERVICE_TOKEN_CHECK_H_

#include <grpcpp/grpcpp.h>

#include <string>

#include "absl/status/statusor.h"
#include "base/bearer_token.h"

namespace cadre::service {

// Looks at the call's "cadre-token" metadata; with an empty `token` every caller is an
// administrator. UNAUTHENTICATED: missing or wrong; the message says how to give it. Whether it has
// ended, or is of another state of the server, is not looked at.
absl::StatusOr<Bearer> CheckToken(const grpc::ServerContext& context, const std::string& token);

}  // namespace cadre::service

#endif  // CADRE_RENDEZVOUS_SERVICE_TOKEN_CHECK_H_
