// Tests two servers in one process, with a real etcd.
#include "rendezvous/service/replica.h"

#include <grpcpp/grpcpp.h>

#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/control.grpc.pb.h"
#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/host/messages_for_test.h"
#include "rendezvous/service/admission.h"
#include "rpc/channels.h"
#include "tests/testing/etcd_process.h"

namespace cadre::service {
namespace {

using ::testing::HasSubstr;

constexpr char kToken[] = "0123456789abcdef0123456789abcdef";
constexpr absl::Duration kTimeout = absl::Seconds(20);

struct Host {
  std::unique_ptr<Server> server;
  std::unique_ptr<Replica> replica;
  std::shared_ptr<grpc::Channel> channel;
};

class ReplicaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!EtcdProcess::IsInstalled()) GTEST_SKIP() << "needs Debian's etcd-server";
    ASSERT_TRUE(etcd_.Start());
  }
  Host Start() {
    Host host;
    ServerOptions listen;
    listen.token = kToken;
    auto server = Server::Start(listen, std::shared_ptr<host::CoreThread>());
    EXPECT_OK(server);
    host.server = *std::move(server);
    const std::string address = absl::StrCat("127.0.0.1:", host.server->port());
    ReplicaOptions options;
    options.etcd.endpoints = {etcd_.endpoint()};
    options.etcd.prefix = "/test/";
    options.address = address;
    options.core = host::NewCoreConfig();
    auto replica = Replica::Start(options, *host.server);
    EXPECT_OK(replica);
    host.replica = *std::move(replica);
    host.channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                             rpc::ClientChannelArguments());
    return host;
  }
  static absl::StatusOr<int> CountJobs(const Host& host) {
    grpc::ClientContext context;
    context.AddMetadata(rpc::kTokenMetadata, kToken);
    context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoSeconds(kTimeout));
    v1::ListJobsReply reply;
    const grpc::Status status = v1::Control::NewStub(host.channel)->ListJobs(&context, {}, &reply);
    if (!status.ok()) return rpc::FromGrpcStatus(status);
    return reply.jobs_size();
  }
  // Waits for an answer that contains `text`, or, if that is empty, until the server leads.
  static absl::StatusOr<int> Await(const Host& host, const std::string& text) {
    const MonoTime until = MonoNow() + kTimeout;
    absl::StatusOr<int> answer;
    do {
      answer = CountJobs(host);
      if (text.empty() ? answer.ok()
                       : absl::StrContains(std::string(answer.status().message()), text)) {
        break;
      }
    } while (MonoNow() < until);
    return answer;
  }

  EtcdProcess etcd_;
};

TEST_F(ReplicaTest, OneLeadsTheOtherSaysWhoAndTakesOver) {
  Host first = Start();
  ASSERT_THAT(Await(first, ""), IsOk());
  grpc::ClientContext context;
  context.AddMetadata(rpc::kTokenMetadata, kToken);
  const auto stub = v1::Rendezvous::NewStub(first.channel);
  const auto stream = stub->Attach(&context);
  v1::ServerMessage message;
  ASSERT_TRUE(stream->Write(host::JoinForTest("node0", 2, 2)));
  ASSERT_TRUE(stream->Read(&message));
  EXPECT_TRUE(message.has_welcome());
  const uint64_t server_id = message.welcome().server_id();

  Host second = Start();
  const std::string leads = absl::StrCat("127.0.0.1:", first.server->port(), " leads");
  EXPECT_THAT(Await(second, leads), StatusIs(absl::StatusCode::kUnavailable, HasSubstr(kStandby)));
  first.replica.reset();
  while (stream->Read(&message)) {
  }
  EXPECT_THAT(rpc::FromGrpcStatus(stream->Finish()), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(CountJobs(first), StatusIs(absl::StatusCode::kUnavailable));

  // It has everything that the first one knew.
  const absl::StatusOr<int> jobs = Await(second, "");
  ASSERT_OK(jobs);
  EXPECT_EQ(*jobs, 1);
  grpc::ClientContext again;
  again.AddMetadata(rpc::kTokenMetadata, kToken);
  const auto second_stub = v1::Rendezvous::NewStub(second.channel);
  const auto resumed = second_stub->Attach(&again);
  ASSERT_TRUE(resumed->Write(host::JoinForTest("node0", 2, 2)));
  ASSERT_TRUE(resumed->Read(&message));
  EXPECT_EQ(message.welcome().server_id(), server_id);
  again.TryCancel();
  while (resumed->Read(&message)) {
  }
  resumed->Finish();
}

TEST_F(ReplicaTest, WithoutEtcdItRefusesAndSaysWhy) {
  etcd_.Kill();
  const Host host = Start();
  EXPECT_THAT(Await(host, "etcd at"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("connection refused")));
  ASSERT_TRUE(etcd_.Start());
  EXPECT_THAT(Await(host, ""), IsOk());
}

}  // namespace
}  // namespace cadre::service
