// Who can speak to a server that proves who it is, by its token's key or by certificates; and what
// happens when those change.
#include <grpcpp/grpcpp.h>
#include <stdlib.h>

#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/bearer_token.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "base/token.h"
#include "proto/control.grpc.pb.h"
#include "rendezvous/host/core_thread.h"
#include "rendezvous/service/server.h"
#include "rpc/channels.h"
#include "rpc/status.h"
#include "rpc/tls/credentials.h"
#include "rpc/unreached.h"
#include "tests/testing/certificates.h"
#include "tests/testing/process.h"

namespace cadre::service {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(20);

rpc::TransportSecurity ByToken() {
  rpc::TransportSecurity security;
  security.by_token = true;
  return security;
}

rpc::TransportSecurity Mutual(const std::string& directory, bool nameless = false) {
  rpc::TransportSecurity security;
  security.tls_dir = directory;
  security.nameless = nameless;
  return security;
}

class ServerTlsTest : public ::testing::Test {
 protected:
  void Start(const rpc::TransportSecurity& security, const std::string& token,
             const std::string& token_file = "") {
    ServerOptions options;
    options.token = token;
    options.token_file = token_file;
    options.security = security;
    options.log = [this](const std::string& line) {
      const std::lock_guard<std::mutex> lock(mutex_);
      said_ += line + "\n";
      changed_.notify_all();
    };
    absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options, core_);
    ASSERT_OK(server);
    server_ = *std::move(server);
  }

  std::unique_ptr<v1::Control::Stub> Connect(
      const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    grpc::ChannelArguments arguments = rpc::ClientChannelArguments();
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return v1::Control::NewStub(grpc::CreateCustomChannel(
        absl::StrCat("127.0.0.1:", server_->port()), credentials, arguments));
  }
  static absl::Status Ask(v1::Control::Stub& stub, const std::string& token) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    context.AddMetadata(rpc::kTokenMetadata, token);
    v1::ListJobsReply reply;
    return rpc::FromGrpcStatus(stub.ListJobs(&context, v1::ListJobsRequest(), &reply));
  }
  // Over a new connection.
  absl::Status Ask(const rpc::TransportSecurity& security, const std::string& token) {
    const auto credentials = rpc::MakeChannelCredentials(security, token);
    if (!credentials.ok()) return credentials.status();
    return Ask(*Connect(*credentials), token);
  }
  bool AwaitAnswer(const rpc::TransportSecurity& security, const std::string& token) {
    const MonoTime end = MonoNow() + kPatience;
    absl::Status last;
    while (MonoNow() < end) {
      last = Ask(security, token);
      if (last.ok()) return true;
    }
    ADD_FAILURE() << last;
    return false;
  }
  bool AwaitSaid(const std::string& text) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, absl::ToChronoSeconds(kPatience),
                             [&] { return said_.find(text) != std::string::npos; });
  }
  std::string UsersToken(const std::string& secret) {
    return UserToken(secret, core_.server_id(), "ann", absl::InfiniteFuture());
  }
  std::string PartsToken(const std::string& secret) {
    return PartToken(secret, core_.server_id(), 12, "job");
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::string said_;
  host::CoreThread core_{host::NewCoreConfig()};
  std::unique_ptr<Server> server_;
};

rpc::Unreached Why(const absl::Status& status) { return rpc::WhyUnreached(status.message()); }

TEST_F(ServerTlsTest, ByItsTokenTheServerIsKnownToAllWhoHaveOneOfIts) {
  const std::string secret = RandomToken();
  Start(ByToken(), secret);
  EXPECT_OK(Ask(ByToken(), secret));
  EXPECT_OK(Ask(ByToken(), UsersToken(secret)));
  // Nothing but TLS is spoken.
  EXPECT_EQ(Why(Ask(rpc::TransportSecurity(), secret)), rpc::Unreached::kClosedWithoutAWord);
}

// So callers go over from clear text to TLS one by one.
TEST_F(ServerTlsTest, WhereClearTextIsServedTooEachCallerIsServedAsItSpeaks) {
  const std::string secret = RandomToken();
  rpc::TransportSecurity both = ByToken();
  both.insecure = true;
  Start(both, secret);
  EXPECT_OK(Ask(ByToken(), secret));
  EXPECT_OK(Ask(rpc::TransportSecurity(), secret));
  EXPECT_THAT(Ask(rpc::TransportSecurity(), RandomToken()),
              StatusIs(absl::StatusCode::kUnauthenticated));
}

TEST_F(ServerTlsTest, WhoeverAnswersWithAnotherKeyIsNotGivenTheToken) {
  const std::string secret = RandomToken(), strangers = RandomToken();
  Start(ByToken(), strangers);
  for (const std::string& token : {secret, UsersToken(secret)}) {
    const absl::Status refused = Ask(ByToken(), token);
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_EQ(Why(refused), rpc::Unreached::kOtherKey) << refused;
  }
}

TEST_F(ServerTlsTest, OfACertificateAuthorityBothShowCertificates) {
  const std::string directory = MakeCertificates(), others = MakeCertificates();
  const std::string secret = RandomToken();
  Start(Mutual(directory), secret);
  EXPECT_OK(Ask(Mutual(directory), secret));
  EXPECT_OK(Ask(Mutual(directory), UsersToken(secret)));
  EXPECT_THAT(Ask(Mutual(others), secret), StatusIs(absl::StatusCode::kUnavailable));
  // The server's certificate is good, the caller's is not.
  std::filesystem::copy_file(directory + "/ca.pem", others + "/ca.pem",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(Ask(Mutual(others), secret), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(ServerTlsTest, OnlyALauncherOfAPartNeedsNoCertificate) {
  const std::string directory = MakeCertificates();
  const std::string secret = RandomToken();
  Start(Mutual(directory), secret);
  for (const std::string& token : {secret, UsersToken(secret)}) {
    EXPECT_THAT(Ask(Mutual(directory, /*nameless=*/true), token),
                StatusIs(absl::StatusCode::kUnauthenticated,
                         HasSubstr("this server wants a certificate and none came")));
  }
  // It is let in, and then may not list jobs.
  EXPECT_THAT(
      Ask(Mutual(directory, /*nameless=*/true), PartsToken(secret)),
      StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("is for its node's stream alone")));
}

TEST_F(ServerTlsTest, AnotherTokenInTheFileCountsAtOnce) {
  const std::string file = MakeTempDir("token") + "/token";
  const std::string before = RandomToken(), after = RandomToken();
  ASSERT_OK(WriteTokenFile(file, before));
  Start(ByToken(), before, file);
  const auto open = Connect(*rpc::MakeChannelCredentials(ByToken(), before));
  ASSERT_OK(Ask(*open, before));
  ASSERT_OK(WriteTokenFile(file, after));
  ASSERT_TRUE(AwaitAnswer(ByToken(), after));
  // The connection is still there, and the old token is good for nothing.
  EXPECT_THAT(Ask(*open, before), StatusIs(absl::StatusCode::kUnauthenticated));
  EXPECT_TRUE(AwaitSaid("refused 127.0.0.1: "));
  EXPECT_EQ(Why(Ask(ByToken(), before)), rpc::Unreached::kOtherKey);
  EXPECT_EQ(server_->token(), after);
  // One that makes no key is not taken.
  ASSERT_OK(WriteTokenFile(file, "a secret that somebody chose"));
  ASSERT_TRUE(AwaitSaid("goes on with the token"));
  EXPECT_OK(Ask(ByToken(), after));
}

TEST_F(ServerTlsTest, OtherCertificatesCountAtOnceAndHalfOfThemNot) {
  const std::string directory = MakeCertificates(), before = MakeTempDir("before");
  std::filesystem::copy(directory, before, std::filesystem::copy_options::recursive);
  const std::string after = MakeCertificates(), secret = RandomToken();
  Start(Mutual(directory), secret);
  const auto open = Connect(*rpc::MakeChannelCredentials(Mutual(before)));
  ASSERT_OK(Ask(*open, secret));
  const auto replace = [&](const std::string& name) {
    std::filesystem::copy_file(after + "/" + name, directory + "/new");
    std::filesystem::rename(directory + "/new", directory + "/" + name);
  };
  // A certificate without its key.
  replace("cert.pem");
  replace("ca.pem");
  ASSERT_TRUE(AwaitSaid("do not belong together"));
  EXPECT_OK(Ask(Mutual(before), secret));
  replace("key.pem");
  ASSERT_TRUE(AwaitAnswer(Mutual(after), secret));
  EXPECT_OK(Ask(*open, secret));
  EXPECT_THAT(Ask(Mutual(before), secret), StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace cadre::service
