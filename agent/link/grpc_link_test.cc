#include "agent/link/grpc_link.h"

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "agent/link/grpc_link_rig.h"
#include "agent/link/link_queue.h"
#include "agent/link/link_status.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/host/fakes_for_test.h"
#include "rendezvous/host/messages_for_test.h"
#include "rpc/channels.h"
#include "rpc/message_limits.h"

namespace cadre::agent {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(GrpcLink, TwoNodesFormAGeneration) {
  Host host;
  Peer first(host.endpoint()), second(host.endpoint());
  first.Start({host::JoinForTest("node0", 2, 2)});
  second.Start({host::JoinForTest("node1", 2, 2)});
  EXPECT_EQ(first.AwaitMessage(v1::ServerMessage::kAssign).assign().first_rank(), 0u);
  EXPECT_EQ(second.AwaitMessage(v1::ServerMessage::kAssign).assign().first_rank(), 2u);
}

TEST(GrpcLink, ManyMessagesAtOnceKeepTheirOrder) {
  Host host;
  Peer peer(host.endpoint());
  peer.Start({host::JoinForTest("node0", 1, 1)});
  ASSERT_TRUE(peer.AwaitMessage(v1::ServerMessage::kAssign).has_assign());
  std::vector<uint64_t> asked;
  for (uint64_t i = 1; i <= 3000; ++i) {
    v1::NodeMessage message = host::JoinForTest("node0", 1, 1);
    *message.mutable_store() = host::SetForTest("key", std::string(i % 100, 'v'), i);
    peer.Send(std::move(message));
    asked.push_back(i);
  }
  EXPECT_EQ(peer.AwaitAnswers(asked.size()), asked);
}

TEST(GrpcLink, WrongTokenEndsTheLink) {
  Host host;
  Peer peer(host.endpoint(), "wrong");
  peer.Start();
  EXPECT_THAT(peer.AwaitDown(), StatusIs(absl::StatusCode::kUnauthenticated,
                                         AllOf(HasSubstr(host.endpoint()), HasSubstr("token"))));
  peer.link().Stop();
  EXPECT_EQ(peer.downs(), 1u);
}

TEST(GrpcLink, AServerThatRefusesAfterAWelcomeIsTriedAgainWhereThatIsWanted) {
  auto host = std::make_unique<Host>();
  const int port = host->port();
  Peer peer(host->endpoint(), kToken, true);
  peer.Start({host::JoinForTest("node0", 1, 1)});
  ASSERT_TRUE(peer.AwaitMessage(v1::ServerMessage::kAssign).has_assign());
  host.reset();
  host = std::make_unique<Host>(port, log::OpenedLog{}, "another token of thirty-two bytes");
  ASSERT_TRUE(peer.AwaitRefusals(2));
  host.reset();
  host = std::make_unique<Host>(port);
  EXPECT_TRUE(peer.AwaitUps(2));
}

// An impostor in the server's place, or a replaced token, must not end a running job at once.
//
// Fault (access): The server that admitted a node now refuses its token: another server has the
// address, or the token was replaced first there -> The node treats the server as unreachable, and
// jobs run on for as long as they do without one
TEST(GrpcLink, AServerThatRefusesAfterAWelcomeIsAway) {
  auto host = std::make_unique<Host>();
  const int port = host->port();
  Peer peer(host->endpoint());
  peer.Start({host::JoinForTest("node0", 1, 1)});
  ASSERT_TRUE(peer.AwaitMessage(v1::ServerMessage::kAssign).has_assign());
  host.reset();
  host = std::make_unique<Host>(port, log::OpenedLog{}, "another token of thirty-two bytes");
  size_t down = 1;
  while (down < 100 && !absl::StrContains(peer.AwaitDown(down).message(), "token")) {
    EXPECT_THAT(peer.AwaitDown(down++), StatusIs(absl::StatusCode::kUnavailable));
  }
  EXPECT_THAT(peer.AwaitDown(down), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("token")));
  host.reset();
  host = std::make_unique<Host>(port);
  EXPECT_TRUE(peer.AwaitUps(2));
}

// For example a renewal that was on its way when the connection broke: the server refuses a stream
// that does not begin with a Join.
//
// Fault (network): An agent's connection breaks while messages wait to be sent -> They are not sent
// on the next stream before its Join, which the server would refuse for good
TEST(GrpcLink, WhatWasMeantForTheStreamBeforeIsNotSaidOnTheNext) {
  auto host = std::make_unique<Host>();
  const int port = host->port();
  const v1::NodeMessage join = host::JoinForTest("node0", 2, 2);
  Peer peer(host->endpoint());
  v1::NodeMessage renew = join;
  renew.mutable_renew();
  peer.SendLate(renew);
  peer.Start({join});
  ASSERT_TRUE(peer.AwaitMessage(v1::ServerMessage::kWelcome).has_welcome());
  host.reset();
  host = std::make_unique<Host>(port);
  Peer other(host->endpoint());
  other.Start({host::JoinForTest("node1", 2, 2)});
  EXPECT_EQ(peer.AwaitMessage(v1::ServerMessage::kAssign).assign().nodes(), 2u);
  for (size_t i = 1; i <= peer.downs(); ++i) {
    EXPECT_THAT(peer.AwaitDown(i), StatusIs(absl::StatusCode::kUnavailable));
  }
}

TEST(GrpcLink, RefusedConnectionIsReportedAndTriedAgain) {
  PlainSocket nobody;
  Peer peer(nobody.endpoint());
  const MonoTime begin = MonoNow();
  peer.Start();
  EXPECT_EQ(peer.AwaitDown(1), absl::UnavailableError(absl::StrCat(
                                   "cannot reach ", nobody.endpoint(), ": connection refused")));
  EXPECT_LT(MonoNow() - begin, absl::Seconds(2));
  EXPECT_THAT(peer.AwaitDown(3), StatusIs(absl::StatusCode::kUnavailable));
}

// Such a server opens every stream, and ends it as soon as a node wants to join.
TEST(GrpcLink, AServerThatCannotSaveIsNotAskedMoreAndMoreOften) {
  Host host(0, {std::make_unique<FullDiskLog>(), {}});
  // The core answers the second call after it has tried to save what came before the first.
  const StreamId other = host.core.OpenStream(std::make_shared<host::DiscardingSink>());
  ASSERT_OK(host.core.Post(other, host::JoinForTest("node0", 2, 2)));
  ASSERT_OK(host.core.AllStatuses());
  ASSERT_OK(host.core.AllStatuses());
  Peer peer(host.endpoint());
  const MonoTime begin = MonoNow();
  peer.Start({host::JoinForTest("node1", 2, 2)});
  EXPECT_THAT(peer.AwaitDown(6), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no room")));
  // Waits of 50, 100, 200, 400 and 800 ms, less jitter of a half at most.
  EXPECT_GE(MonoNow() - begin, absl::Milliseconds(775));
}

TEST(GrpcLink, StrangerIsRecognised) {
  PlainSocket web_server;
  web_server.Listen();
  std::thread answer(
      [&] { web_server.AnswerOnce("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"); });
  Peer peer(web_server.endpoint());
  peer.Start();
  EXPECT_THAT(peer.AwaitDown(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                         HasSubstr("answers, but is not a cadre server")));
  answer.join();
}

TEST(GrpcLink, MalformedEndpointEndsTheLink) {
  Peer peer("nowhere");
  peer.Start();
  EXPECT_THAT(peer.AwaitDown(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("host:port")));
}

TEST(GrpcLink, ComesBackWhenTheServerDoes) {
  auto host = std::make_unique<Host>();
  const int port = host->port();
  Peer peer(host->endpoint());
  peer.Start({host::JoinForTest("node0", 2, 2)});
  ASSERT_TRUE(peer.AwaitUps(1));
  host = nullptr;
  EXPECT_THAT(peer.AwaitDown(), StatusIs(absl::StatusCode::kUnavailable));
  host = std::make_unique<Host>(port);
  ASSERT_TRUE(peer.AwaitUps(2));
  Peer other(host->endpoint());
  other.Start({host::JoinForTest("node1", 2, 2)});
  // The node has joined the new server as well.
  EXPECT_EQ(peer.AwaitMessage(v1::ServerMessage::kAssign).assign().nodes(), 2u);
}

// The state of a server in a launcher is lost with it if it kept none on disk, so the node need not
// wait for it to come back. Another server may take its place.
TEST(GrpcLink, AServerThatEndedWithItsLauncherIsNotFoundAnyMore) {
  auto host = std::make_unique<Host>(0, log::OpenedLog(), kToken, rpc::TransportSecurity(), true);
  const int port = host->port();
  Peer peer(host->endpoint());
  peer.Start({host::JoinForTest("node0", 2, 2)});
  ASSERT_TRUE(peer.AwaitUps(1));
  host = nullptr;
  EXPECT_THAT(peer.AwaitDown(1), StatusIs(absl::StatusCode::kUnavailable)) << "how it ended";
  EXPECT_THAT(peer.AwaitDown(2),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("connection refused"),
                             HasSubstr("the launcher that ran the server there"))));
  host = std::make_unique<Host>(port);
  ASSERT_TRUE(peer.AwaitUps(2));
  const size_t downs = peer.downs();
  host = nullptr;
  for (const size_t more : {1, 2, 3}) {
    EXPECT_THAT(peer.AwaitDown(downs + more), StatusIs(absl::StatusCode::kUnavailable));
  }
}

TEST(GrpcLink, TheServerThatLeadsIsFoundAmongSeveral) {
  PlainSocket nobody;
  Host reserve, leader;
  reserve.Refuse(absl::StrCat("in reserve: ", leader.endpoint(), " leads"));
  Peer peer(absl::StrCat(nobody.endpoint(), ",", reserve.endpoint(), ",", leader.endpoint()));
  peer.Start({host::JoinForTest("node0", 1, 1)});
  EXPECT_EQ(peer.AwaitMessage(v1::ServerMessage::kAssign).assign().nodes(), 1u);
  EXPECT_EQ(peer.downs(), 0u);
}

TEST(GrpcLink, SeveralServersOfWhichNoneLeadsAreReportedTogether) {
  PlainSocket nobody;
  Host reserve;
  reserve.Refuse("in reserve: nobody leads yet");
  Peer peer(absl::StrCat(nobody.endpoint(), ",", reserve.endpoint()));
  peer.Start();
  EXPECT_EQ(peer.AwaitDown(), absl::UnavailableError(absl::StrCat(
                                  "cannot reach ", nobody.endpoint(), ": connection refused; ",
                                  reserve.endpoint(), ": in reserve: nobody leads yet")));
}

TEST(GrpcLink, ALeaderThatIsDeposedIsLeftForTheNextOne) {
  Host first, second;
  second.Refuse(absl::StrCat("in reserve: ", first.endpoint(), " leads"));
  Peer peer(absl::StrCat(first.endpoint(), ",", second.endpoint()));
  peer.Start({host::JoinForTest("node0", 1, 1)});
  ASSERT_TRUE(peer.AwaitUps(1));
  second.Serve();
  first.Refuse("this server no longer leads");
  first.core.Stop(absl::UnavailableError("this server no longer leads"));
  EXPECT_THAT(peer.AwaitDown(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no longer leads")));
  EXPECT_TRUE(peer.AwaitUps(2));
  EXPECT_EQ(peer.AwaitMessage(v1::ServerMessage::kAssign).assign().nodes(), 1u);
}

TEST(GrpcLink, StopDeliversWhatIsQueued) {
  Host host;
  Peer peer(host.endpoint());
  peer.Start();
  ASSERT_TRUE(peer.AwaitUps(1));
  v1::NodeMessage renew = host::JoinForTest("node0", 2, 2);
  renew.mutable_renew();
  peer.Send(host::JoinForTest("node0", 2, 2));
  for (int i = 0; i < 1000; ++i) peer.Send(renew);
  v1::NodeMessage cancel = renew;
  cancel.mutable_cancel()->set_reason("last");
  peer.Send(cancel);
  peer.link().Stop();
  const absl::StatusOr<v1::JobStatus> job = host.core.Status("job");
  ASSERT_OK(job);
  EXPECT_EQ(job->phase(), v1::CANCELLED_PHASE);
  EXPECT_EQ(peer.downs(), 0u);
}

TEST(GrpcLink, StopInterruptsConnecting) {
  PlainSocket mute;
  mute.Listen();
  Peer peer(mute.endpoint());
  peer.Start();
  const MonoTime begin = MonoNow();
  peer.link().Stop();
  EXPECT_LT(MonoNow() - begin, absl::Seconds(2));
  EXPECT_EQ(peer.downs(), 0u);
}

TEST(GrpcLink, StopInterruptsBackoffAndMayBeRepeated) {
  PlainSocket nobody;
  Peer peer(nobody.endpoint());
  peer.Start();
  EXPECT_FALSE(peer.AwaitDown(4).ok());
  const MonoTime begin = MonoNow();
  peer.link().Stop();
  peer.link().Stop();
  EXPECT_LT(MonoNow() - begin, absl::Seconds(2));
}

TEST(GrpcLink, LargeStoreRequestIsAnsweredAndHarmsNobody) {
  Host host;
  Peer peer(host.endpoint());
  peer.Start({host::JoinForTest("node0", 2, 2)});
  ASSERT_TRUE(peer.AwaitUps(1));
  v1::NodeMessage large;
  *large.mutable_store() = host::SetForTest("k", std::string(rpc::kMessageBytesMax, 'x'), 42);
  peer.Send(large);
  const v1::StoreReply reply = peer.AwaitMessage(v1::ServerMessage::kStore).store();
  EXPECT_EQ(reply.code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(reply.request_id(), 42u);
  EXPECT_EQ(reply.client(), 7u);
  EXPECT_EQ(peer.downs(), 0u);
}

TEST(GrpcLink, OtherLargeMessageEndsTheLink) {
  Host host;
  Peer peer(host.endpoint());
  v1::NodeMessage large = host::JoinForTest("node0", 2, 2);
  large.mutable_join()->mutable_spec()->add_command(std::string(rpc::kMessageBytesMax, 'x'));
  peer.Start({large});
  EXPECT_THAT(peer.AwaitDown(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("over the limit")));
  EXPECT_TRUE(host.core.AllStatuses()->empty());
}

// A server that opens streams but does not read them.
class ServerThatDoesNotRead final : public v1::Rendezvous::Service {
 public:
  ServerThatDoesNotRead() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~ServerThatDoesNotRead() override {
    ended_.Notify();
    server_->Shutdown();
  }
  std::string endpoint() const { return absl::StrCat("127.0.0.1:", port_); }

  grpc::Status Attach(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::ServerMessage, v1::NodeMessage>* stream) override {
    context->AddInitialMetadata(rpc::kServerMetadata, "1");
    stream->SendInitialMetadata();
    ended_.WaitForNotification();
    return grpc::Status::OK;
  }

 private:
  absl::Notification ended_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST(GrpcLink, QueueThatOverflowsIsReportedAndTheLinkComesBack) {
  ServerThatDoesNotRead server;
  Peer peer(server.endpoint());
  const v1::NodeMessage join = host::JoinForTest("node0", 2, 2);
  peer.Start({join});
  ASSERT_TRUE(peer.AwaitUps(1));
  v1::NodeMessage renew = join;
  renew.mutable_renew();
  for (size_t i = 0; i < 200 * kLinkQueueMessagesMax && peer.downs() == 0; ++i) {
    peer.Send(renew);
  }
  EXPECT_THAT(peer.AwaitDown(), StatusIs(absl::StatusCode::kUnavailable,
                                         HasSubstr("does not read what this node sends")));
  EXPECT_TRUE(peer.AwaitUps(2));
}

const absl::Status kAway = absl::UnavailableError("away");
const absl::Status kRefused = absl::UnauthenticatedError("another token");
const absl::Status kForbidden = absl::PermissionDeniedError("another job's token");
const absl::Status kUnusable = absl::InvalidArgumentError("no PEM");

TEST(RetryRule, BeforeAWelcomeARefusalEndsTheLink) {
  for (const bool returns : {false, true}) {
    RetryRule rule(returns);
    EXPECT_TRUE(rule.RoundEnded(kAway, false).retries);
    for (const absl::Status& status : {kRefused, kForbidden, kUnusable}) {
      const RetryRule::Next next = rule.RoundEnded(status, false);
      EXPECT_FALSE(next.retries) << status;
      EXPECT_EQ(next.status, status);
    }
    EXPECT_EQ(rule.FilesUnusable(kUnusable), kUnusable);
    EXPECT_EQ(RetryRule::TokenReplaced(kRefused), absl::UnavailableError("another token"));
  }
}

TEST(RetryRule, AfterAWelcomeWhoDoesNotKnowTheTokenIsNotTheServer) {
  RetryRule rule(false);
  EXPECT_TRUE(rule.RoundEnded(kAway, true).retries);
  const RetryRule::Next next = rule.RoundEnded(kRefused, false);
  EXPECT_TRUE(next.retries);
  EXPECT_EQ(next.status, absl::UnavailableError("another token"));
  EXPECT_EQ(rule.FilesUnusable(kUnusable), absl::UnavailableError("no PEM"));
  // The server knows the token, and refuses it.
  EXPECT_FALSE(rule.RoundEnded(kForbidden, false).retries);
  EXPECT_FALSE(rule.RoundEnded(kUnusable, false).retries);
}

TEST(RetryRule, WhoReturnsAfterARefusalHearsOfIt) {
  RetryRule rule(true);
  rule.RoundEnded(kAway, true);
  for (const absl::Status& status : {kRefused, kForbidden, kUnusable}) {
    const RetryRule::Next next = rule.RoundEnded(status, false);
    EXPECT_TRUE(next.retries) << status;
    EXPECT_EQ(next.status, status);
  }
}

TEST(RetryRule, PausesGrowUntilAWelcomeAndFurtherAfterRefusals) {
  RetryRule rule(true);
  EXPECT_EQ(rule.RoundEnded(kAway, true).backoff, rpc::kReconnectBackoffMin);
  EXPECT_EQ(rule.RoundEnded(kAway, false).backoff, 2 * rpc::kReconnectBackoffMin);
  for (int i = 0; i < 10; ++i) rule.RoundEnded(kAway, false);
  EXPECT_EQ(rule.RoundEnded(kAway, false).backoff, rpc::kReconnectBackoffMax);
  for (int i = 0; i < 10; ++i) rule.RoundEnded(kRefused, false);
  EXPECT_EQ(rule.RoundEnded(kRefused, false).backoff, kRefusedBackoffMax);
  EXPECT_EQ(rule.RoundEnded(kAway, true).backoff, rpc::kReconnectBackoffMin);
}

}  // namespace
}  // namespace cadre::agent
