#include "tests/testing/http2_flood.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "proto/control.grpc.pb.h"
#include "tests/testing/certificates.h"
#include "tests/testing/process.h"

namespace cadre {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(20);
constexpr uint64_t kSome = 500;

// Answers ListJobs if the client sends the token.
class Answers final : public v1::Control::Service {
 public:
  grpc::Status ListJobs(grpc::ServerContext* context, const v1::ListJobsRequest*,
                        v1::ListJobsReply* reply) override {
    ++calls;
    const auto token = context->client_metadata().find("cadre-token");
    if (token == context->client_metadata().end() || token->second != "secret") {
      return grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "no token");
    }
    reply->add_jobs()->set_name("job");
    return grpc::Status::OK;
  }
  std::atomic<uint64_t> calls{0};
};

class Http2FloodTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
    if (GetParam()) {
      const std::string directory = MakeCertificates();
      grpc::SslServerCredentialsOptions options;
      options.pem_key_cert_pairs.push_back(
          {ReadFileOrEmpty(directory + "/key.pem"), ReadFileOrEmpty(directory + "/cert.pem")});
      credentials = grpc::SslServerCredentials(options);
    }
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", credentials, &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    options_.port = port;
    options_.tls = GetParam();
    options_.duration = kTimeout;
  }
  void TearDown() override { server_->Shutdown(std::chrono::system_clock::now()); }

  // Runs the flood until `enough` holds; returns the counts until then.
  FloodCounts FloodUntil(const std::function<bool(const FloodCounts&)>& enough) {
    Http2Flood flood(options_);
    const bool came = flood.Await(enough, kTimeout);
    const FloodCounts counts = flood.Stop();
    EXPECT_TRUE(came) << FloodKindText(options_.kind) << ": " << counts.connected
                      << " connections, " << counts.frames << " frames, " << counts.streams
                      << " streams, " << counts.answered_ok << " and " << counts.answered_otherwise
                      << " answers";
    return counts;
  }

  Answers service_;
  std::unique_ptr<grpc::Server> server_;
  FloodOptions options_;
};

TEST_P(Http2FloodTest, CallsWithATokenAreAnsweredAndOthersRefused) {
  options_.kind = FloodKind::kCalls;
  options_.connections = 4;
  const auto refused = [](const FloodCounts& counts) { return counts.answered_otherwise >= kSome; };
  EXPECT_EQ(FloodUntil(refused).answered_ok, 0u);
  options_.token = "secret";
  const auto answered = [](const FloodCounts& counts) { return counts.answered_ok >= kSome; };
  const FloodCounts counts = FloodUntil(answered);
  EXPECT_EQ(counts.answered_otherwise, 0u);
  EXPECT_EQ(counts.connected, 4u);
  EXPECT_EQ(counts.closed_by_server, 0u);
}

TEST_P(Http2FloodTest, ConnectionsComeFromAllSources) {
  options_.kind = FloodKind::kConnectionsHeld;
  options_.connections = 100;
  options_.sources = SourceAddresses(64);
  const auto held = [](const FloodCounts& counts) { return counts.connected == 100; };
  EXPECT_EQ(FloodUntil(held).not_connected, 0u);
  options_.kind = FloodKind::kConnectionsClosed;
  options_.connections = 4;
  FloodUntil([](const FloodCounts& counts) { return counts.connected >= kSome; });
}

TEST_P(Http2FloodTest, AnHonestCallComesFirst) {
  options_.kind = FloodKind::kStreamsReset;
  options_.token = "secret";
  options_.honest_call_first = true;
  const FloodCounts counts =
      FloodUntil([](const FloodCounts& now) { return now.streams >= kSome; });
  EXPECT_GE(counts.answered_ok, 1u);
}

// Each kind sends something for a moment, and the server keeps serving.
TEST_P(Http2FloodTest, EveryKindOfFramesIsSent) {
  for (const FloodKind kind : AllFloodKinds()) {
    options_.kind = kind;
    options_.connections = 2;
    options_.inflated_mebibytes = 1;
    options_.message = nullptr;
    if (kind == FloodKind::kHandshakes && !GetParam()) continue;
    if (kind == FloodKind::kBytes || kind == FloodKind::kBytesAndClosed) {
      options_.message = [](uint64_t) { return "half a mess"; };
    }
    FloodUntil([kind](const FloodCounts& counts) {
      const bool connects = kind == FloodKind::kConnectionsHeld ||
                            kind == FloodKind::kConnectionsClosed || kind == FloodKind::kHandshakes;
      return counts.connected >= 2 && (connects || counts.bytes_sent > 0);
    });
  }
  options_.kind = FloodKind::kCalls;
  options_.message = nullptr;
  options_.token = "secret";
  FloodUntil([](const FloodCounts& counts) { return counts.answered_ok >= kSome; });
}

TEST_P(Http2FloodTest, UnreadAnswersStayUnread) {
  for (const FloodKind kind : {FloodKind::kUnreadAnswers, FloodKind::kUnreadSocket}) {
    options_.kind = kind;
    options_.token = "secret";
    options_.in_flight = 50;
    const uint64_t before = service_.calls;
    Http2Flood flood(options_);
    EXPECT_TRUE(flood.Await(
        [&](const FloodCounts& counts) {
          return counts.streams == 50 && service_.calls == before + 50;
        },
        kTimeout))
        << FloodKindText(kind);
    EXPECT_EQ(flood.Stop().answered_ok, 0u);
  }
}

TEST_P(Http2FloodTest, CompressedMessagesAreCallsOfTheirInflatedSize) {
  options_.kind = FloodKind::kCompressedMessages;
  options_.token = "secret";
  // Zeroes are not a valid request, and there are more of them than a server accepts.
  options_.inflated_mebibytes = 16;
  options_.in_flight = 2;
  FloodUntil([](const FloodCounts& counts) { return counts.answered_otherwise >= 4; });
  EXPECT_EQ(service_.calls, 0u);
}

TEST_P(Http2FloodTest, WhereNobodyListensNothingConnects) {
  options_.port = FreePort();
  options_.kind = FloodKind::kStreamsOpened;
  const FloodCounts counts =
      FloodUntil([](const FloodCounts& now) { return now.not_connected >= 2; });
  EXPECT_EQ(counts.streams, 0u);
}

INSTANTIATE_TEST_SUITE_P(, Http2FloodTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Tls" : "Clear"; });

}  // namespace
}  // namespace cadre
