#include "rendezvous/service/server.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/bearer_token.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "proto/control.grpc.pb.h"
#include "proto/rendezvous.grpc.pb.h"
#include "proto/store.grpc.pb.h"
#include "rendezvous/host/deaf_sink_for_test.h"
#include "rendezvous/host/join_for_test.h"
#include "rpc/channels.h"
#include "rpc/limits.h"
#include "rpc/status.h"

namespace cadre::service {
namespace {

using ::testing::HasSubstr;

constexpr char kToken[] = "0123456789abcdef0123456789abcdef";
constexpr absl::Duration kPatience = absl::Seconds(20);
// Tells the child process of one test where the server is.
constexpr char kPortVariable[] = "CADRE_TEST_PORT";

// The client's side of one call.
class Call {
 public:
  explicit Call(const std::string& token = kToken) {
    if (!token.empty()) context_.AddMetadata(rpc::kTokenMetadata, token);
    context_.set_deadline(std::chrono::system_clock::now() + absl::ToChronoSeconds(kPatience));
  }
  grpc::ClientContext* get() { return &context_; }

 private:
  grpc::ClientContext context_;
};

std::shared_ptr<grpc::Channel> Connect(int port, int answer_bytes_max = rpc::kMessageBytesMax) {
  grpc::ChannelArguments arguments = rpc::ClientChannelArguments({}, answer_bytes_max);
  // A message that is too large must be refused by the server.
  arguments.SetMaxSendMessageSize(-1);
  // Each test and each of its clients has a connection of its own.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port),
                                   grpc::InsecureChannelCredentials(), arguments);
}

class ServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ServerOptions options;
    options.token = kToken;
    absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options, core_);
    ASSERT_OK(server);
    server_ = *std::move(server);
    channel_ = Connect(server_->port());
  }

  // Waits for the core to say so; each look is a round trip to its thread.
  template <typename Predicate>
  bool AwaitStatus(const Predicate& predicate) {
    const MonoTime deadline = MonoNow() + kPatience;
    while (MonoNow() < deadline) {
      const absl::StatusOr<v1::JobStatus> status = core_.Status("job");
      if (status.ok() && predicate(*status)) return true;
    }
    return false;
  }

  using NodeStream = grpc::ClientReaderWriter<v1::NodeMessage, v1::ServerMessage>;

  // The server's next message, and those that came together with it.
  static std::vector<v1::ServerMessage> Read(NodeStream& stream) {
    v1::ServerMessage first;
    if (!stream.Read(&first)) return {};
    std::vector<v1::ServerMessage> messages(first.more().begin(), first.more().end());
    messages.insert(messages.begin(), std::move(first));
    return messages;
  }
  // The next message with this body; without one when the stream ended.
  static v1::ServerMessage ReadUntil(NodeStream& stream, v1::ServerMessage::BodyCase body) {
    for (;;) {
      const std::vector<v1::ServerMessage> messages = Read(stream);
      if (messages.empty()) return {};
      for (const v1::ServerMessage& message : messages) {
        if (message.body_case() == body) return message;
      }
    }
  }

  static absl::Status End(NodeStream& stream) {
    v1::ServerMessage message;
    while (stream.Read(&message)) {
    }
    return rpc::FromGrpcStatus(stream.Finish());
  }

  host::CoreThread core_{host::NewCoreConfig()};
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(ServerTest, EveryCallNeedsTheToken) {
  for (const std::string token : {"", "0123456789abcdef0123456789abcdeX"}) {
    const auto refused = StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("--token-file"));
    Call attach(token), execute(token), list(token), get(token), cancel(token);
    EXPECT_THAT(End(*v1::Rendezvous::NewStub(channel_)->Attach(attach.get())), refused);
    v1::StoreReply reply;
    EXPECT_THAT(rpc::FromGrpcStatus(v1::Store::NewStub(channel_)->Execute(
                    execute.get(), host::GetForTest("k", 1), &reply)),
                refused);
    const auto control = v1::Control::NewStub(channel_);
    v1::ListJobsReply jobs;
    EXPECT_THAT(rpc::FromGrpcStatus(control->ListJobs(list.get(), {}, &jobs)), refused);
    v1::JobStatus job;
    EXPECT_THAT(rpc::FromGrpcStatus(control->GetJob(get.get(), {}, &job)), refused);
    EXPECT_THAT(rpc::FromGrpcStatus(control->CancelJob(cancel.get(), {}, &job)), refused);
  }
}

TEST_F(ServerTest, NodeJoinsAndControlSeesIt) {
  Call attach, get, list, cancel, again, unknown;
  const auto stream = v1::Rendezvous::NewStub(channel_)->Attach(attach.get());
  ASSERT_TRUE(stream->Write(host::JoinForTest("node0", 1, 1)));
  EXPECT_EQ(ReadUntil(*stream, v1::ServerMessage::kAssign).assign().world_size(), 2u);

  const auto control = v1::Control::NewStub(channel_);
  v1::GetJobRequest request;
  request.set_name("job");
  v1::JobStatus job;
  ASSERT_OK(rpc::FromGrpcStatus(control->GetJob(get.get(), request, &job)));
  EXPECT_EQ(job.generation(), 1u);
  v1::ListJobsReply jobs;
  ASSERT_OK(rpc::FromGrpcStatus(control->ListJobs(list.get(), {}, &jobs)));
  EXPECT_EQ(jobs.jobs_size(), 1);
  v1::CancelJobRequest enough;
  enough.set_name("job");
  EXPECT_OK(rpc::FromGrpcStatus(control->CancelJob(cancel.get(), enough, &job)));
  EXPECT_TRUE(ReadUntil(*stream, v1::ServerMessage::kStop).has_stop());
  request.set_name("none");
  EXPECT_THAT(rpc::FromGrpcStatus(control->GetJob(unknown.get(), request, &job)),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(ServerTest, AUsersJobAndItsNameAreNotAnothers) {
  const auto control = v1::Control::NewStub(channel_);
  const auto submit = [&](const std::string& user, const std::string& token) {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = host::JoinForTest("node0", 1, 1).join().spec();
    request.set_user(user);
    Call call(token);
    v1::JobStatus job;
    return rpc::FromGrpcStatus(control->SubmitJob(call.get(), request, &job));
  };
  const auto cancel = [&](const std::string& token) {
    Call call(token);
    v1::CancelJobRequest request;
    request.set_name("job");
    v1::JobStatus job;
    return rpc::FromGrpcStatus(control->CancelJob(call.get(), request, &job));
  };
  const auto token_of = [&](const std::string& user) {
    return UserToken(kToken, core_.server_id(), user, absl::Now() + kTokenLifetime);
  };
  const std::string ann = token_of("ann"), bob = token_of("bob");
  ASSERT_OK(submit("ann", ann));
  EXPECT_THAT(submit("bob", bob),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("job job is ann's")));
  EXPECT_THAT(cancel(bob), StatusIs(absl::StatusCode::kPermissionDenied));
  ASSERT_OK(cancel(ann));
  EXPECT_THAT(submit("bob", bob),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("ended before it ran, and keeps its name; take another name")));
  EXPECT_OK(submit("ann", ann));
  ASSERT_OK(cancel(ann));
  // An administrator gives the name to somebody else.
  EXPECT_OK(submit("bob", kToken));
}

TEST_F(ServerTest, FirstMessageMustBeJoin) {
  Call attach;
  const auto stream = v1::Rendezvous::NewStub(channel_)->Attach(attach.get());
  v1::NodeMessage renew;
  renew.mutable_renew();
  ASSERT_TRUE(stream->Write(renew));
  EXPECT_THAT(End(*stream), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("Join")));
}

TEST_F(ServerTest, WhatComesTogetherIsTakenOneByOne) {
  Call attach;
  const auto stream = v1::Rendezvous::NewStub(channel_)->Attach(attach.get());
  v1::NodeMessage message = host::JoinForTest("node0", 1, 1);
  for (uint64_t i = 1; i <= 3; ++i) {
    v1::NodeMessage* next = message.add_more();
    *next = host::JoinForTest("node0", 1, 1);
    *next->mutable_store() = host::SetForTest("key", absl::StrCat(i), i);
  }
  ASSERT_TRUE(stream->Write(message));
  std::vector<uint64_t> answered;
  while (answered.size() < 3) {
    const std::vector<v1::ServerMessage> messages = Read(*stream);
    ASSERT_FALSE(messages.empty());
    for (const v1::ServerMessage& message : messages) {
      if (message.has_store()) answered.push_back(message.store().request_id());
    }
  }
  EXPECT_EQ(answered, std::vector<uint64_t>({1, 2, 3}));
}

TEST_F(ServerTest, NodeThatDoesNotReadIsClosed) {
  Call attach;
  const auto stream = v1::Rendezvous::NewStub(channel_)->Attach(attach.get());
  ASSERT_TRUE(stream->Write(host::JoinForTest("node0", 1, 1)));
  ASSERT_TRUE(AwaitStatus([](const v1::JobStatus& job) { return job.generation() == 1; }));
  v1::NodeMessage ask;
  ask.set_job("job");
  ask.set_generation(1);
  ask.set_incarnation(host::JoinForTest("node0", 1, 1).incarnation());
  *ask.mutable_store() = host::SetForTest("k", std::string(64 << 10, 'x'), 1);
  ASSERT_TRUE(stream->Write(ask));
  // Answers of 64 KiB each, far more than the stream's queue and all buffers on the way hold.
  constexpr uint64_t kQuestions = 4096;
  for (uint64_t asked = 2; asked <= kQuestions; ++asked) {
    *ask.mutable_store() = host::GetForTest("k", asked);
    if (!stream->Write(ask)) break;
  }
  // Asked over the same connection, because what is left of the questions leaves it only while
  // somebody on this side waits for an answer.
  const auto control = v1::Control::NewStub(channel_);
  v1::GetJobRequest request;
  request.set_name("job");
  v1::JobStatus job;
  const MonoTime deadline = MonoNow() + kPatience;
  do {
    Call get;
    ASSERT_OK(rpc::FromGrpcStatus(control->GetJob(get.get(), request, &job)));
  } while (job.nodes_size() > 0 && MonoNow() < deadline);
  EXPECT_THAT(End(*stream), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("read")));
}

TEST_F(ServerTest, MessageOverTheLimitIsRefused) {
  Call attach, execute;
  const auto stream = v1::Rendezvous::NewStub(channel_)->Attach(attach.get());
  v1::NodeMessage large = host::JoinForTest("node0", 1, 1);
  large.mutable_join()->set_master_addr(std::string(rpc::kMessageBytesMax, 'x'));
  stream->Write(large);
  EXPECT_THAT(End(*stream), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("larger")));
  v1::StoreReply reply;
  EXPECT_THAT(rpc::FromGrpcStatus(v1::Store::NewStub(channel_)->Execute(
                  execute.get(), host::SetForTest("k", std::string(rpc::kMessageBytesMax, 'x'), 1),
                  &reply)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("larger")));
  EXPECT_TRUE(core_.AllStatuses()->empty());
}

TEST_F(ServerTest, AListMayBeLargerThanAnyOtherMessage) {
  const std::string long_name(255, 'n');
  for (int i = 0; i < 2500; ++i) {
    v1::NodeMessage join = host::JoinForTest(long_name, 2, 2);
    join.set_job(absl::StrCat("job", i));
    join.mutable_join()->mutable_spec()->set_name(join.job());
    ASSERT_OK(core_.Post(core_.OpenStream(std::make_shared<host::DeafSink>()), join));
  }
  const auto list = [&](const std::shared_ptr<grpc::Channel>& channel) {
    Call call;
    v1::ListJobsReply reply;
    const grpc::Status status =
        v1::Control::NewStub(channel)->ListJobs(call.get(), v1::ListJobsRequest(), &reply);
    EXPECT_TRUE(!status.ok() || reply.ByteSizeLong() > size_t{rpc::kMessageBytesMax});
    return rpc::FromGrpcStatus(status);
  };
  EXPECT_OK(list(Connect(server_->port(), rpc::kListBytesMax)));
  EXPECT_THAT(list(channel_), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("larger")));
}

// Who holds a token can ask for lists for ever and read none of them.
TEST_F(ServerTest, AnswersThatAUserDoesNotReadAreBoundedAndClosed) {
  absl::Mutex mutex;
  std::vector<std::string> lines;
  ServerOptions options;
  options.token = kToken;
  options.caller_limits.unread_bytes = 1 << 20;
  options.caller_limits.unread_for = absl::Seconds(2);
  options.log = [&](const std::string& line) {
    const absl::MutexLock lock(&mutex);
    lines.push_back(line);
  };
  const std::unique_ptr<Server> server = *Server::Start(options, core_);
  const std::string long_name(255, 'n');
  for (int i = 0; i < 4900; ++i) {
    v1::NodeMessage join = host::JoinForTest(long_name, 2, 2);
    join.set_job(absl::StrCat("job", i));
    join.mutable_join()->mutable_spec()->set_name(join.job());
    ASSERT_OK(core_.Post(core_.OpenStream(std::make_shared<host::DeafSink>()), join));
  }
  const std::string token = ReadToken(kToken, core_.server_id(), absl::Now() + absl::Hours(1));
  const auto channel = Connect(server->port(), rpc::kListBytesMax);
  // Each asks and does not read; the first answer may have any size.
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(channel);
  struct Deaf {
    grpc::ClientContext context;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call;
  };
  std::vector<std::unique_ptr<Deaf>> all;
  for (int i = 0; i < 8; ++i) {
    Deaf& deaf = *all.emplace_back(std::make_unique<Deaf>());
    deaf.context.AddMetadata(rpc::kTokenMetadata, token);
    deaf.call = stub.PrepareCall(&deaf.context, "/cadre.v1.Control/ListJobs", &queue);
    void* tag;
    bool ok;
    deaf.call->StartCall(&deaf);
    queue.Next(&tag, &ok);
    const grpc::Slice empty;
    deaf.call->WriteLast(grpc::ByteBuffer(&empty, 1), grpc::WriteOptions(), &deaf);
    queue.Next(&tag, &ok);
    EXPECT_TRUE(ok);
  }
  // Another one is told why it gets nothing, until the first is closed.
  const auto list = [&] {
    grpc::ClientContext context;
    context.AddMetadata(rpc::kTokenMetadata, token);
    v1::ListJobsReply reply;
    return rpc::FromGrpcStatus(
        v1::Control::NewStub(channel)->ListJobs(&context, v1::ListJobsRequest(), &reply));
  };
  const auto closed = [&] {
    const absl::MutexLock lock(&mutex);
    return std::find(lines.begin(), lines.end(),
                     "closed an answer of the read-only tokens, which was not read") != lines.end();
  };
  const MonoTime deadline = MonoNow() + kPatience;
  absl::Status refused;
  while (!closed() && MonoNow() < deadline) {
    if (const absl::Status listed = list(); !listed.ok()) refused = listed;
  }
  EXPECT_TRUE(closed());
  EXPECT_THAT(refused,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("the read-only tokens: ")));
  absl::Status listed = list();
  while (!listed.ok() && MonoNow() < deadline) listed = list();
  EXPECT_OK(listed);
  for (const auto& deaf : all) {
    deaf->context.TryCancel();
    void* tag;
    bool ok;
    grpc::Status status;
    deaf->call->Finish(&status, deaf.get());
    queue.Next(&tag, &ok);
  }
  queue.Shutdown();
  void* tag;
  bool ok;
  while (queue.Next(&tag, &ok)) {
  }
}

TEST_F(ServerTest, StoreCallWaitsForItsKey) {
  Call attach, wait, set, cancelled;
  const auto stream = v1::Rendezvous::NewStub(channel_)->Attach(attach.get());
  ASSERT_TRUE(stream->Write(host::JoinForTest("node0", 1, 1)));
  ASSERT_TRUE(AwaitStatus([](const v1::JobStatus& job) { return job.generation() == 1; }));
  const auto store = v1::Store::NewStub(channel_);
  v1::StoreReply got, stored;
  grpc::Status waited;
  std::thread waiter([&] { waited = store->Execute(wait.get(), host::GetForTest("k", 1), &got); });
  ASSERT_OK(rpc::FromGrpcStatus(store->Execute(set.get(), host::SetForTest("k", "v", 2), &stored)));
  waiter.join();
  ASSERT_OK(rpc::FromGrpcStatus(waited));
  EXPECT_EQ(got.code(), 0) << got.message();
  EXPECT_EQ(got.value(), "v");

  std::thread gives_up([&] {
    v1::StoreReply never;
    waited = store->Execute(cancelled.get(), host::GetForTest("other", 3), &never);
  });
  cancelled.get()->TryCancel();
  gives_up.join();
  EXPECT_THAT(rpc::FromGrpcStatus(waited), StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(ServerTest, ShutdownWithNobodyThereIsQuick) {
  const MonoTime begin = MonoNow();
  server_->Shutdown(kPatience);
  EXPECT_LT(MonoNow() - begin, absl::Seconds(2));
}

TEST_F(ServerTest, ShutdownEndsWithTheLastStream) {
  Call attach;
  const auto stream = v1::Rendezvous::NewStub(channel_)->Attach(attach.get());
  ASSERT_TRUE(stream->Write(host::JoinForTest("node0", 2, 2)));
  v1::ServerMessage message;
  ASSERT_TRUE(stream->Read(&message));
  const MonoTime begin = MonoNow();
  std::thread shutdown([this] { server_->Shutdown(kPatience); });
  ASSERT_TRUE(stream->WritesDone());
  EXPECT_OK(End(*stream));
  shutdown.join();
  EXPECT_LT(MonoNow() - begin, absl::Seconds(2));
}

TEST_F(ServerTest, ShutdownCancelsWhatStays) {
  Call attach, wait;
  const auto stream = v1::Rendezvous::NewStub(channel_)->Attach(attach.get());
  ASSERT_TRUE(stream->Write(host::JoinForTest("node0", 1, 1)));
  ASSERT_TRUE(AwaitStatus([](const v1::JobStatus& job) { return job.generation() == 1; }));
  v1::StoreReply reply;
  grpc::Status waited;
  std::thread waiter([&] {
    waited = v1::Store::NewStub(channel_)->Execute(wait.get(), host::GetForTest("k", 1), &reply);
  });
  server_->Shutdown(absl::Milliseconds(10));
  waiter.join();
  EXPECT_FALSE(waited.ok());
  EXPECT_FALSE(End(*stream).ok());
}

// Runs in a process of its own, started and killed by the test below.
TEST(ServerChild, DISABLED_JoinsAndStays) {
  const char* port = getenv(kPortVariable);
  ASSERT_NE(port, nullptr);
  Call attach;
  const auto stream = v1::Rendezvous::NewStub(Connect(atoi(port)))->Attach(attach.get());
  ASSERT_TRUE(stream->Write(host::JoinForTest("node0", 2, 2)));
  v1::ServerMessage message;
  while (stream->Read(&message)) {
  }
}

TEST_F(ServerTest, NodeWhoseProcessIsKilledIsGoneAtOnce) {
  setenv(kPortVariable, absl::StrCat(server_->port()).c_str(), 1);
  const char* const arguments[] = {"server_test", "--gtest_filter=ServerChild.*",
                                   "--gtest_also_run_disabled_tests", nullptr};
  pid_t child = 0;
  ASSERT_EQ(posix_spawn(&child, "/proc/self/exe", nullptr, nullptr,
                        const_cast<char* const*>(arguments), environ),
            0);
  EXPECT_TRUE(AwaitStatus([](const v1::JobStatus& job) { return job.nodes_size() == 1; }));
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  const MonoTime begin = MonoNow();
  EXPECT_TRUE(AwaitStatus([](const v1::JobStatus& job) { return job.nodes_size() == 0; }));
  const absl::Duration took = MonoNow() - begin;
  // Not the lease of 10 s, but the end of the stream, and the grace for coming back.
  EXPECT_LT(took, absl::Seconds(2));
  RecordProperty("gone_after_us", static_cast<int>(absl::ToInt64Microseconds(took)));
}

}  // namespace
}  // namespace cadre::service
