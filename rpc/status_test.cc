#include "rpc/status.h"

#include <string>

#include "base/status_matchers.h"
#include "rpc/status_details.h"

namespace cadre::rpc {
namespace {

TEST(GrpcStatus, CrossesBothWaysAndIsCut) {
  const absl::Status status = absl::AbortedError("moved on");
  EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(status)), status);
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
  EXPECT_EQ(ToGrpcStatus(absl::AbortedError(std::string(5000, 'x'))).error_message().size(),
            kStatusTextBytesMax);
}

TEST(GrpcStatus, DetailsCrossToo) {
  const absl::Status status = NotLeading("another server leads");
  EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(status)), status);
  EXPECT_TRUE(IsNotLeading(FromGrpcStatus(ToGrpcStatus(status))));
}

}  // namespace
}  // namespace cadre::rpc
