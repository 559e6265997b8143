#include "rpc/channels.h"

#include <map>
#include <string>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "rpc/status_details.h"

namespace cadre::rpc {
namespace {

std::map<std::string, int> Integers(const grpc::ChannelArguments& arguments) {
  std::map<std::string, int> values;
  const grpc_channel_args args = arguments.c_channel_args();
  for (size_t i = 0; i < args.num_args; ++i) {
    if (args.args[i].type == GRPC_ARG_INTEGER) {
      values[args.args[i].key] = args.args[i].value.integer;
    }
  }
  return values;
}

TEST(ChannelArguments, ClientsHaveTheAgreedSettings) {
  std::map<std::string, int> values = Integers(ClientChannelArguments());
  EXPECT_EQ(values.at(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH), 1 << 20);
  EXPECT_EQ(values.at(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH), 1 << 20);
  EXPECT_EQ(values.at(GRPC_ARG_MAX_METADATA_SIZE), 8192);
  EXPECT_EQ(values.at(GRPC_ARG_KEEPALIVE_TIME_MS), 10000);
  EXPECT_EQ(values.at(GRPC_ARG_KEEPALIVE_TIMEOUT_MS), 5000);
  EXPECT_EQ(values.at(GRPC_ARG_ENABLE_HTTP_PROXY), 0);
  EXPECT_EQ(values.at(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS), 50);
  EXPECT_EQ(values.at(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS), 1000);
}

TEST(ChannelArguments, WhoAsksForListsTakesLargerAnswers) {
  std::map<std::string, int> values = Integers(ClientChannelArguments({}, kListBytesMax));
  EXPECT_EQ(values.at(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH), 64 << 20);
  EXPECT_EQ(values.at(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH), 1 << 20);
}

TEST(ChannelArguments, ClientsMayHaveTheirOwnTiming) {
  const ClientTiming timing = {absl::Seconds(1), absl::Seconds(2), absl::Seconds(3)};
  std::map<std::string, int> values = Integers(ClientChannelArguments(timing));
  EXPECT_EQ(values.at(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS), 1000);
  EXPECT_EQ(values.at(GRPC_ARG_KEEPALIVE_TIME_MS), 2000);
  EXPECT_EQ(values.at(GRPC_ARG_KEEPALIVE_TIMEOUT_MS), 3000);
}

TEST(ChannelArguments, ServersAllowThePingsThatClientsSend) {
  EXPECT_LT(kPingIntervalMin, kKeepaliveTime);
}

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
