// What calls and streams allow the bearers of tokens, also for other users' jobs and for jobs that
// are over, at a server's socket; and the threads that run them.
#include "rendezvous/service/calls.h"

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/bearer_token.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "proto/control.grpc.pb.h"
#include "proto/rendezvous.grpc.pb.h"
#include "proto/store.grpc.pb.h"
#include "rendezvous/accounting/accounting.h"
#include "rendezvous/host/messages_for_test.h"
#include "rendezvous/service/server.h"
#include "rpc/channels.h"

namespace cadre::service {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kToken[] = "0123456789abcdef0123456789abcdef";
constexpr char kOtherToken[] = "fedcba9876543210fedcba9876543210";
constexpr absl::Duration kTimeout = absl::Seconds(20);
constexpr absl::StatusCode kDenied = absl::StatusCode::kPermissionDenied;
constexpr absl::StatusCode kUnknown = absl::StatusCode::kUnauthenticated;

class TokenMisuseTest : public ::testing::Test {
 protected:
  TokenMisuseTest() { Start(); }

  void Start() {
    ServerOptions options;
    options.token = kToken;
    options.accounting = accounting_;
    core_ = std::make_shared<host::CoreThread>(host::NewCoreConfig());
    server_ = *Server::Start(options, core_);
    grpc::ChannelArguments arguments = rpc::ClientChannelArguments();
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel_ = grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                         grpc::InsecureChannelCredentials(), arguments);
  }

  // Restarts with the same token and without the state.
  void Restart() {
    server_.reset();
    Start();
  }

  static absl::Time End() { return absl::Now() + kTokenLifetime; }
  std::string User(const std::string& name) const {
    return UserToken(kToken, core_->server_id(), name, End());
  }
  std::string Part(const std::string& job) const {
    return PartToken(kToken, core_->server_id(), 12, job);
  }
  // A token of ann that has expired already.
  std::string Ended() const {
    return UserToken(kToken, core_->server_id(), "ann", absl::Now() - absl::Seconds(1));
  }

  static void Prepare(const std::string& token, grpc::ClientContext* context) {
    context->AddMetadata(rpc::kTokenMetadata, token);
    context->set_deadline(std::chrono::system_clock::now() + absl::ToChronoSeconds(kTimeout));
  }
  // The status with which a stream that begins with `first` ends, if it gets no Welcome.
  absl::Status Attach(const std::string& token, const v1::NodeMessage& first) {
    grpc::ClientContext context;
    Prepare(token, &context);
    const auto stream = v1::Rendezvous::NewStub(channel_)->Attach(&context);
    stream->Write(first);
    v1::ServerMessage message;
    while (stream->Read(&message)) {
      if (message.has_welcome()) return absl::OkStatus();
      if (!message.has_rejected()) continue;
      return absl::Status(static_cast<absl::StatusCode>(message.rejected().code()),
                          message.rejected().message());
    }
    return rpc::FromGrpcStatus(stream->Finish());
  }
  static v1::NodeMessage Join(const std::string& job, uint64_t part) {
    v1::NodeMessage join = host::JoinForTest("node0", 1, 1);
    join.set_job(job);
    join.mutable_join()->mutable_spec()->set_name(job);
    join.mutable_join()->set_part(part);
    return join;
  }
  static v1::NodeMessage JoinOfAgent() {
    v1::NodeMessage message;
    message.set_incarnation(7);
    message.mutable_agent()->mutable_joined()->set_node("mine");
    return message;
  }
  absl::Status Set(const std::string& token, const std::string& job) {
    grpc::ClientContext context;
    Prepare(token, &context);
    v1::StoreRequest request = host::SetForTest("k", "v", 1);
    request.set_job(job);
    v1::StoreReply reply;
    return rpc::FromGrpcStatus(v1::Store::NewStub(channel_)->Execute(&context, request, &reply));
  }
  absl::Status List(const std::string& token) {
    grpc::ClientContext context;
    Prepare(token, &context);
    v1::ListJobsReply jobs;
    return rpc::FromGrpcStatus(v1::Control::NewStub(channel_)->ListJobs(&context, {}, &jobs));
  }
  absl::Status Cancel(const std::string& token, const std::string& job) {
    grpc::ClientContext context;
    Prepare(token, &context);
    v1::CancelJobRequest request;
    request.set_name(job);
    v1::JobStatus status;
    return rpc::FromGrpcStatus(
        v1::Control::NewStub(channel_)->CancelJob(&context, request, &status));
  }

  // Calls one method of Control.
  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Ask(const std::string& token,
                            grpc::Status (v1::Control::Stub::*method)(grpc::ClientContext*,
                                                                      const Request&, Reply*),
                            const Request& request) {
    grpc::ClientContext context;
    Prepare(token, &context);
    Reply reply;
    const auto stub = v1::Control::NewStub(channel_);
    const absl::Status status = rpc::FromGrpcStatus(((*stub).*method)(&context, request, &reply));
    if (!status.ok()) return status;
    return reply;
  }
  // Submits a job that stays in the queue, because there are no nodes.
  absl::Status Submit(const std::string& token, const std::string& user, const std::string& job) {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = host::JoinForTest("node0", 1, 1).join().spec();
    request.mutable_spec()->set_name(job);
    request.mutable_spec()->mutable_logs()->set_dir("/home/ann/secret");
    request.set_user(user);
    return Ask(token, &v1::Control::Stub::SubmitJob, request).status();
  }
  absl::StatusOr<v1::JobStatus> Get(const std::string& token, const std::string& job) {
    v1::GetJobRequest request;
    request.set_name(job);
    return Ask(token, &v1::Control::Stub::GetJob, request);
  }

  // Null: the server keeps none.
  std::shared_ptr<accounting::Accounting> accounting_;
  std::shared_ptr<host::CoreThread> core_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(TokenMisuseTest, WhatEndedLongAgoIsToldAsWhatEndedJustNow) {
  EXPECT_THAT(Ask(User("ann"), &v1::Control::Stub::ListHistory, v1::HistoryRequest()).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("keeps no accounting")));
  const std::string directory = absl::StrCat(::testing::TempDir(), "/accounting");
  std::filesystem::create_directory(directory);
  accounting::AccountingOptions options;
  options.path = directory + "/accounting.sqlite";
  accounting_ = std::make_shared<accounting::Accounting>(options);
  Restart();
  v1::AccountedJob job;
  job.set_ended_order(1);
  job.set_name("job");
  job.set_user("ann");
  job.set_message("secret");
  job.set_gpu_us(7);
  job.set_ended_unix_ms(absl::ToUnixMillis(absl::Now()));
  accounting_->Add({job});
  accounting_->AwaitWritten();
  for (const char* const user : {"ann", "bob"}) {
    const auto history = Ask(User(user), &v1::Control::Stub::ListHistory, v1::HistoryRequest());
    ASSERT_OK(history);
    ASSERT_EQ(history->jobs_size(), 1);
    EXPECT_EQ(history->jobs(0).name(), "job");
    EXPECT_EQ(history->jobs(0).message() == "secret", user == std::string("ann"));
  }
  const auto usage = Ask(User("bob"), &v1::Control::Stub::GetUsage, v1::UsageRequest());
  ASSERT_OK(usage);
  EXPECT_EQ(usage->total().gpu_us(), 7);
  EXPECT_THAT(Ask(Part("job"), &v1::Control::Stub::ListHistory, v1::HistoryRequest()).status(),
              StatusIs(kDenied));
  EXPECT_THAT(Ask(Part("job"), &v1::Control::Stub::GetUsage, v1::UsageRequest()).status(),
              StatusIs(kDenied));
  server_.reset();
  accounting_.reset();
  std::filesystem::remove_all(directory);
}

TEST_F(TokenMisuseTest, ALaunchersTokenOpensNothingOfAnotherJobOrPart) {
  const std::string token = Part("job");
  EXPECT_THAT(Attach(token, Join("other", 12)), StatusIs(kDenied));
  EXPECT_THAT(Attach(token, Join("job", 13)), StatusIs(kDenied));
  EXPECT_THAT(Attach(token, Join("job", 0)), StatusIs(kDenied));
  EXPECT_THAT(Attach(token, JoinOfAgent()), StatusIs(kDenied));
  EXPECT_THAT(Set(token, "other"), StatusIs(kDenied));
  EXPECT_THAT(List(token), StatusIs(kDenied));
}

// The next job of that name may be another user's.
//
// Fault (access): A launcher's token is used after its job is over -> The call is refused
TEST_F(TokenMisuseTest, ALaunchersTokenThatOutlivesItsPartOpensNothing) {
  // A job that was not submitted has the name, and no part 12.
  grpc::ClientContext context;
  Prepare(kToken, &context);
  const auto running = v1::Rendezvous::NewStub(channel_)->Attach(&context);
  ASSERT_TRUE(running->Write(Join("job", 0)));
  v1::ServerMessage welcome;
  ASSERT_TRUE(running->Read(&welcome));
  const std::string token = Part("job");
  v1::NodeMessage join = Join("job", 12);
  join.mutable_join()->set_node("node1");
  EXPECT_FALSE(Attach(token, join).ok());
  EXPECT_THAT(Set(token, "job"), StatusIs(kDenied));
  EXPECT_THAT(Cancel(token, "job"), StatusIs(kDenied));
  context.TryCancel();
}

// Fault (access): A user asks for another user's job, live or ended, in any way in which a job is
// shown -> The answer, or the refusal, has none of its program's output, command or files
TEST_F(TokenMisuseTest, AnotherUserIsToldThatAJobEndedAndNotInWhatWords) {
  const std::string ann = User("ann"), bob = User("bob");
  ASSERT_OK(Submit(ann, "ann", "job"));
  v1::CancelJobRequest cancel;
  cancel.set_name("job");
  cancel.set_reason("secret");
  ASSERT_OK(Ask(ann, &v1::Control::Stub::CancelJob, cancel));
  const auto hers = Get(ann, "job"), his = Get(bob, "job");
  ASSERT_OK(hers);
  ASSERT_OK(his);
  EXPECT_THAT(hers->DebugString(), HasSubstr("secret"));
  EXPECT_EQ(his->phase(), v1::CANCELLED_PHASE);
  EXPECT_THAT(his->DebugString(), Not(HasSubstr("secret")));
  const auto list = Ask(bob, &v1::Control::Stub::ListJobs, v1::ListJobsRequest());
  ASSERT_OK(list);
  ASSERT_EQ(list->jobs_size(), 1);
  EXPECT_THAT(list->DebugString(), Not(HasSubstr("secret")));
}

// The reason why a log cannot be read reveals its path, and whether the job exists.
TEST_F(TokenMisuseTest, WhyItCannotBeDoneIsSaidToWhoMayDoIt) {
  const std::string ann = User("ann"), bob = User("bob");
  const std::string part = Part("other");
  ASSERT_OK(Submit(ann, "ann", "job"));
  v1::ReadLogRequest log;
  log.set_job("job");
  log.set_run("an earlier one");
  EXPECT_THAT(Ask(ann, &v1::Control::Stub::ReadLog, log).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("/home/ann/secret")));
  v1::GetStacksRequest stacks;
  stacks.set_job("job");
  v1::CancelJobRequest cancel;
  for (const std::string& token : {bob, part}) {
    EXPECT_THAT(Ask(token, &v1::Control::Stub::ReadLog, log).status(), StatusIs(kDenied));
    EXPECT_THAT(Ask(token, &v1::Control::Stub::GetStacks, stacks).status(), StatusIs(kDenied));
  }
  // A launcher must not even learn which jobs exist.
  log.set_job("none");
  stacks.set_job("none");
  cancel.set_name("none");
  EXPECT_THAT(Ask(part, &v1::Control::Stub::ReadLog, log).status(), StatusIs(kDenied));
  EXPECT_THAT(Ask(part, &v1::Control::Stub::GetStacks, stacks).status(), StatusIs(kDenied));
  EXPECT_THAT(Ask(part, &v1::Control::Stub::CancelJob, cancel).status(), StatusIs(kDenied));
}

// `cadre run` with this server.
//
// Fault (access): A user joins, cancels, reads or reuses the name of a job that `cadre run` began
// with another user's token -> The call is refused for live and ended jobs; administrators may do
// it
TEST_F(TokenMisuseTest, AJobThatNobodySubmittedIsItsStartersOrTheAdministrators) {
  const auto join = [](const std::string& job, const std::string& node) {
    v1::NodeMessage message = Join(job, 0);
    message.set_incarnation(std::hash<std::string>()(node));
    message.mutable_join()->set_node(node);
    return message;
  };
  const auto stacks = [&](const std::string& token, const std::string& job) {
    v1::GetStacksRequest request;
    request.set_job(job);
    return Ask(token, &v1::Control::Stub::GetStacks, request).status();
  };
  ASSERT_OK(Attach(User("ann"), join("anns", "node0")));
  ASSERT_OK(Attach(kToken, join("roots", "node0")));
  for (const std::string job : {"anns", "roots"}) {
    EXPECT_THAT(Attach(User("bob"), join(job, "node1")),
                StatusIs(kDenied, HasSubstr("this is the token of user bob")));
    // A node of the same name has joined already.
    EXPECT_THAT(Attach(User("bob"), join(job, "node0")), StatusIs(kDenied));
    EXPECT_THAT(Cancel(User("bob"), job), StatusIs(kDenied));
    EXPECT_THAT(stacks(User("bob"), job), StatusIs(kDenied));
    ASSERT_OK(Get(User("bob"), job));
    EXPECT_EQ(Get(User("bob"), job)->name(), job);
  }
  EXPECT_THAT(Attach(User("ann"), join("roots", "node1")), StatusIs(kDenied));
  EXPECT_THAT(Cancel(User("ann"), "roots"),
              StatusIs(kDenied, HasSubstr("the job is the administrators'")));
  EXPECT_OK(Attach(kToken, join("anns", "node1")));
  EXPECT_OK(Cancel(User("ann"), "anns"));
  // A job that has ended keeps its name and its output.
  EXPECT_THAT(Attach(User("bob"), join("anns", "node2")), StatusIs(kDenied));
  EXPECT_OK(Cancel(kToken, "roots"));
}

// Fault (access): A user's or launcher's token is shown to a server that has lost its state since
// -> It is refused, and the error says how to make another token
TEST_F(TokenMisuseTest, AfterTheStateIsLostTokensOfBeforeFitNoMore) {
  const std::string ann = User("ann"), part = Part("job");
  ASSERT_OK(List(ann));
  Restart();
  EXPECT_THAT(List(ann), StatusIs(kUnknown, HasSubstr("lost its state")));
  EXPECT_THAT(Attach(ann, Join("job", 0)), StatusIs(kUnknown, HasSubstr("lost its state")));
  EXPECT_THAT(Attach(part, Join("job", 12)), StatusIs(kUnknown, HasSubstr("lost its state")));
  EXPECT_OK(List(kToken));
  EXPECT_OK(List(User("ann")));
}

// Fault (access): A user's token expires while that user's jobs run -> The jobs run on, also past a
// restart of the server
TEST_F(TokenMisuseTest, WithATokenThatHasEndedNothingBeginsAndWhatRunsComesBack) {
  EXPECT_THAT(List(Ended()), StatusIs(kUnknown, HasSubstr("the token of user ann expired at ")));
  EXPECT_THAT(Set(Ended(), "job"), StatusIs(kUnknown));
  v1::NodeMessage join = Join("job", 0);
  // The node's own claim about its caller is ignored.
  join.mutable_join()->mutable_caller()->set_user("bob");
  EXPECT_THAT(Attach(Ended(), join), StatusIs(kUnknown, HasSubstr("expired at")));
  ASSERT_OK(Attach(User("ann"), join));
  EXPECT_OK(Attach(Ended(), join));
}

// Fault (access): A token of another job, allocation, user, server or agent is shown to a server ->
// The call is refused
TEST_F(TokenMisuseTest, ATokenIsGoodForWhatItSaysAndForOneServer) {
  const std::string part = Part("job"), user = User("ann");
  for (const std::string& token :
       {absl::StrReplaceAll(part, {{":12:", ":13:"}}),
        absl::StrReplaceAll(part, {{"job", "other"}}), absl::StrReplaceAll(user, {{"ann", "bob"}}),
        absl::StrReplaceAll(part, {{"part:12", "user"}}),
        PartToken(kOtherToken, core_->server_id(), 12, "job"),
        UserToken(kOtherToken, core_->server_id(), "ann", End()), std::string(kOtherToken)}) {
    EXPECT_THAT(Attach(token, Join("job", 12)), StatusIs(kUnknown)) << token;
    EXPECT_THAT(Set(token, "job"), StatusIs(kUnknown)) << token;
    EXPECT_THAT(List(token), StatusIs(kUnknown)) << token;
  }
  EXPECT_OK(List(user));
}

class CallThreadsTest : public ::testing::Test {
 protected:
  CallThreadsTest() {
    grpc::ServerBuilder builder;
    threads_ = std::make_unique<CallThreads>(builder.AddCompletionQueue());
    server_ = builder.BuildAndStart();
    threads_->Start();
  }
  void EndThreads() {
    server_->Shutdown(std::chrono::system_clock::now());
    threads_ = nullptr;
  }
  ~CallThreadsTest() override { EndThreads(); }

  void OnAlarm(bool ok) {
    went_off_ = ok;
    ended_.Notify();
  }

  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<CallThreads> threads_;
  OperationOf<CallThreadsTest, &CallThreadsTest::OnAlarm> operation_{this};
  bool went_off_ = false;
  absl::Notification ended_;
};

TEST_F(CallThreadsTest, TellsOfAnOperationThatHasEnded) {
  grpc::Alarm alarm;
  alarm.Set(threads_->queue(), std::chrono::system_clock::now(),
            static_cast<Operation*>(&operation_));
  ASSERT_TRUE(ended_.WaitForNotificationWithTimeout(kTimeout));
  EXPECT_TRUE(went_off_);
}

TEST_F(CallThreadsTest, TellsOfOneThatWasCancelled) {
  grpc::Alarm alarm;
  alarm.Set(threads_->queue(), std::chrono::system_clock::now() + std::chrono::hours(1),
            static_cast<Operation*>(&operation_));
  alarm.Cancel();
  ASSERT_TRUE(ended_.WaitForNotificationWithTimeout(kTimeout));
  EXPECT_FALSE(went_off_);
}

TEST_F(CallThreadsTest, StayUntilAllCallsAreOver) {
  threads_->Enter();
  threads_->Enter();
  threads_->Leave();
  CallThreads& threads = *threads_;
  std::atomic<bool> left{false};
  std::thread ending([&] {
    EndThreads();
    EXPECT_TRUE(left);
  });
  left = true;
  threads.Leave();
  ending.join();
}

TEST(CallThreads, MayEndWithoutHavingStarted) {
  grpc::ServerBuilder builder;
  auto threads = std::make_unique<CallThreads>(builder.AddCompletionQueue());
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  server->Shutdown(std::chrono::system_clock::now());
  threads = nullptr;
}

}  // namespace

}  // namespace cadre::service
