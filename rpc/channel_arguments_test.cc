#include "rpc/channel_arguments.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <fstream>
#include <map>
#include <string>

#include "base/status_matchers.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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

class TlsFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/tls_XXXXXX";
    ASSERT_NE(mkdtemp(&name[0]), nullptr);
    security_.tls_dir = name;
  }

  void Write(const std::string& name, mode_t mode) {
    const std::string path = security_.tls_dir + "/" + name;
    std::ofstream(path) << "-----BEGIN SOMETHING-----\n";
    chmod(path.c_str(), mode);
  }

  TransportSecurity security_;
};

TEST_F(TlsFiles, NoDirectoryMeansNoEncryption) {
  EXPECT_OK(MakeServerCredentials(TransportSecurity()));
  EXPECT_OK(MakeChannelCredentials(TransportSecurity()));
}

TEST_F(TlsFiles, AbsentFileIsNamed) {
  Write("ca.pem", 0644);
  EXPECT_THAT(MakeServerCredentials(security_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("/cert.pem: No such file"), HasSubstr("must hold ca.pem"))));
  EXPECT_THAT(MakeChannelCredentials(security_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("/cert.pem")));
}

TEST_F(TlsFiles, KeyOpenToOthersIsRefused) {
  Write("ca.pem", 0644);
  Write("cert.pem", 0644);
  Write("key.pem", 0644);
  EXPECT_THAT(MakeServerCredentials(security_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("chmod 600")));
}

TEST_F(TlsFiles, FileThatIsNoPemIsRefused) {
  std::ofstream(security_.tls_dir + "/ca.pem") << "hello\n";
  EXPECT_THAT(MakeServerCredentials(security_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not in PEM format")));
}

TEST(GrpcStatus, CrossesBothWaysAndIsCut) {
  const absl::Status status = absl::AbortedError("moved on");
  EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(status)), status);
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
  EXPECT_EQ(ToGrpcStatus(absl::AbortedError(std::string(5000, 'x'))).error_message().size(),
            kStatusTextBytesMax);
}

}  // namespace
}  // namespace cadre
