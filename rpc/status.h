// How statuses cross gRPC.
#ifndef CADRE_RPC_STATUS_H_
#define CADRE_RPC_STATUS_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>

#include "absl/status/status.h"

namespace cadre::rpc {

// Text of a status; longer ones are cut, so that they fit into the metadata.
inline constexpr size_t kStatusTextBytesMax = 1 << 10;

// Details (status_details.h) cross too.
grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace cadre::rpc

#endif  // CADRE_RPC_STATUS_H_
