#include "rpc/status.h"

#include <string>

#include "rpc/status_details.h"

namespace cadre::rpc {

grpc::Status ToGrpcStatus(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      std::string(status.message().substr(0, kStatusTextBytesMax)),
                      SerializedDetails(status));
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  return WithSerializedDetails(
      absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message()),
      status.error_details());
}

}  // namespace cadre::rpc
