// Whether a call carries the server's token. Thread safe.
#ifndef CADRE_RENDEZVOUS_SERVICE_TOKEN_CHECK_H_
#define CADRE_RENDEZVOUS_SERVICE_TOKEN_CHECK_H_

#include <grpcpp/grpcpp.h>

#include <string>

#include "absl/status/status.h"

namespace cadre {

// Looks at the call's "cadre-token" metadata; an empty `token` lets every call pass.
// UNAUTHENTICATED: missing or wrong; the message says how to give it.
absl::Status CheckToken(const grpc::ServerContext& context, const std::string& token);

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_SERVICE_TOKEN_CHECK_H_
