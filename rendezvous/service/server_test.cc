#include "rendezvous/service/server.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/barrier.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/bearer_token.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "base/token.h"
#include "gtest/gtest.h"
#include "proto/control.grpc.pb.h"
#include "proto/rendezvous.grpc.pb.h"
#include "proto/store.grpc.pb.h"
#include "rendezvous/host/core_thread.h"
#include "rendezvous/host/fakes_for_test.h"
#include "rendezvous/host/messages_for_test.h"
#include "rendezvous/service/admission.h"
#include "rpc/channels.h"
#include "rpc/message_limits.h"
#include "rpc/status_details.h"
#include "rpc/tls/credentials.h"
#include "tests/testing/certificates.h"
#include "tests/testing/process.h"

namespace cadre::service {
namespace {

using ::testing::HasSubstr;

constexpr char kToken[] = "0123456789abcdef0123456789abcdef";
constexpr absl::Duration kTimeout = absl::Seconds(20);
// Tells the child process of one test where the server is.
constexpr char kPortVariable[] = "CADRE_TEST_PORT";

// The client's side of one call.
class Call {
 public:
  explicit Call(const std::string& token = kToken) {
    if (!token.empty()) context_.AddMetadata(rpc::kTokenMetadata, token);
    context_.set_deadline(std::chrono::system_clock::now() + absl::ToChronoSeconds(kTimeout));
  }
  grpc::ClientContext* get() { return &context_; }

 private:
  grpc::ClientContext context_;
};

std::shared_ptr<grpc::Channel> Connect(int port, int answer_bytes_max = rpc::kMessageBytesMax) {
  grpc::ChannelArguments arguments = rpc::ClientChannelArguments({}, answer_bytes_max);
  // The server must refuse a message that is too large.
  arguments.SetMaxSendMessageSize(-1);
  // Each test, and each of its clients, has a connection of its own.
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

  // Polls the core; each poll is a round trip to its thread.
  template <typename Predicate>
  bool AwaitStatus(const Predicate& predicate) {
    const MonoTime deadline = MonoNow() + kTimeout;
    while (MonoNow() < deadline) {
      const absl::StatusOr<v1::JobStatus> status = core_.Status("job");
      if (status.ok() && predicate(*status)) return true;
    }
    return false;
  }

  using NodeStream = grpc::ClientReaderWriter<v1::NodeMessage, v1::ServerMessage>;

  // Reads the server's next message, and those that came together with it.
  static std::vector<v1::ServerMessage> Read(NodeStream& stream) {
    v1::ServerMessage first;
    if (!stream.Read(&first)) return {};
    std::vector<v1::ServerMessage> messages(first.more().begin(), first.more().end());
    messages.insert(messages.begin(), std::move(first));
    return messages;
  }
  // Reads up to the next message with this body; an empty message if the stream has ended.
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

// Fault (access): A client makes any call without the token -> The call is refused before the
// server reads its message
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

// Fault (access): A user names a job of another user, who has one of the same name -> The user's own
// job is meant; without one the request is refused
TEST_F(ServerTest, ANameMeansTheCallersOwnJob) {
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
  const auto owner_of = [&](const std::string& name, const std::string& token) {
    Call call(token);
    v1::GetJobRequest request;
    request.set_name(name);
    v1::JobStatus job;
    EXPECT_OK(rpc::FromGrpcStatus(control->GetJob(call.get(), request, &job)));
    return job.user();
  };
  ASSERT_OK(submit("ann", ann));
  EXPECT_THAT(cancel(bob), StatusIs(absl::StatusCode::kPermissionDenied));
  ASSERT_OK(submit("bob", bob));
  EXPECT_EQ(owner_of("job", ann), "ann");
  EXPECT_EQ(owner_of("job", bob), "bob");
  EXPECT_EQ(owner_of("job", kToken), "bob");
  EXPECT_EQ(owner_of("1", bob), "ann");
  ASSERT_OK(cancel(ann));
  ASSERT_OK(cancel(bob));
  EXPECT_THAT(cancel(kToken), StatusIs(absl::StatusCode::kFailedPrecondition));
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

// Fault (server): A node does not read its stream -> The stream is closed with RESOURCE_EXHAUSTED,
// and other nodes are answered meanwhile
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
  // Asked over the same connection, because the rest of the requests is sent only while this side
  // waits for an answer.
  const auto control = v1::Control::NewStub(channel_);
  v1::GetJobRequest request;
  request.set_name("job");
  v1::JobStatus job;
  const MonoTime deadline = MonoNow() + kTimeout;
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

// Fault (display): The cluster has thousands of nodes -> `cadre nodes` works: a list may have 64
// MiB
TEST_F(ServerTest, AListMayBeLargerThanAnyOtherMessage) {
  const std::string long_name(255, 'n');
  for (int i = 0; i < 2500; ++i) {
    v1::NodeMessage join = host::JoinForTest(long_name, 2, 2);
    join.set_job(absl::StrCat("job", i));
    join.mutable_join()->mutable_spec()->set_name(join.job());
    ASSERT_OK(core_.Post(core_.OpenStream(std::make_shared<host::DiscardingSink>()), join));
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

// Calls that request the list of jobs and never read it.
class UnreadLists {
 public:
  UnreadLists(const std::shared_ptr<grpc::Channel>& channel, const std::string& token, int count)
      : stub_(channel) {
    for (int i = 0; i < count; ++i) {
      Unread& call = *calls_.emplace_back(std::make_unique<Unread>());
      call.context.AddMetadata(rpc::kTokenMetadata, token);
      call.stream = stub_.PrepareCall(&call.context, "/cadre.v1.Control/ListJobs", &queue_);
      call.stream->StartCall(&call);
      Next();
      const grpc::Slice empty;
      call.stream->WriteLast(grpc::ByteBuffer(&empty, 1), grpc::WriteOptions(), &call);
      EXPECT_TRUE(Next());
    }
  }
  ~UnreadLists() {
    for (const auto& call : calls_) {
      call->context.TryCancel();
      grpc::Status status;
      call->stream->Finish(&status, call.get());
      Next();
    }
    queue_.Shutdown();
    void* tag;
    bool ok;
    while (queue_.Next(&tag, &ok)) {
    }
  }

 private:
  struct Unread {
    grpc::ClientContext context;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream;
  };
  // Whether the operation started last has succeeded.
  bool Next() {
    void* tag;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::CompletionQueue queue_;
  grpc::GenericStub stub_;
  std::vector<std::unique_ptr<Unread>> calls_;
};

absl::Status List(const std::shared_ptr<grpc::Channel>& channel, const std::string& token) {
  grpc::ClientContext context;
  context.AddMetadata(rpc::kTokenMetadata, token);
  v1::ListJobsReply reply;
  return rpc::FromGrpcStatus(
      v1::Control::NewStub(channel)->ListJobs(&context, v1::ListJobsRequest(), &reply));
}

class UnreadAnswersTest : public ServerTest {
 protected:
  UnreadAnswersTest() {
    ServerOptions options;
    options.token = kToken;
    options.caller_limits.unread_bytes = 1 << 20;
    options.caller_limits.unread_for = absl::Seconds(2);
    options.log = [&](const std::string& line) {
      const absl::MutexLock lock(&mutex_);
      lines_.push_back(line);
    };
    limited_ = *Server::Start(options, core_);
  }
  // Makes the list of jobs longer than the limit.
  void AddJobs() {
    const std::string long_name(255, 'n');
    for (int i = 0; i < 4900; ++i) {
      v1::NodeMessage join = host::JoinForTest(long_name, 2, 2);
      join.set_job(absl::StrCat("job", i));
      join.mutable_join()->mutable_spec()->set_name(join.job());
      ASSERT_OK(core_.Post(core_.OpenStream(std::make_shared<host::DiscardingSink>()), join));
    }
  }
  bool HasLogged(const std::string& line) {
    const absl::MutexLock lock(&mutex_);
    return std::find(lines_.begin(), lines_.end(), line) != lines_.end();
  }

  absl::Mutex mutex_;
  std::vector<std::string> lines_;
  std::unique_ptr<Server> limited_;
};

// A client with a token may request lists again and again without reading them.
//
// Fault (access): The holder of a token requests lists and reads none -> Each user's unread answers
// are limited; after a minute (2 s in the test) the call is ended, and the log names the user
TEST_F(UnreadAnswersTest, AnswersThatAUserDoesNotReadAreBoundedAndClosed) {
  AddJobs();
  const std::string token = ReadToken(kToken, core_.server_id(), absl::Now() + absl::Hours(1));
  const auto channel = Connect(limited_->port(), rpc::kListBytesMax);
  // The first answer may have any size.
  const UnreadLists unread(channel, token, 8);
  // Another client's call is refused with the reason, until the first answer is closed.
  const auto closed = [this] {
    return HasLogged("closed an answer of the read-only tokens, which was not read");
  };
  const MonoTime deadline = MonoNow() + kTimeout;
  absl::Status refused;
  while (!closed() && MonoNow() < deadline) {
    if (const absl::Status listed = List(channel, token); !listed.ok()) refused = listed;
  }
  EXPECT_TRUE(closed());
  EXPECT_THAT(refused,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("the read-only tokens")));
  absl::Status listed = List(channel, token);
  while (!listed.ok() && MonoNow() < deadline) listed = List(channel, token);
  EXPECT_OK(listed);
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
  server_->Shutdown(kTimeout);
  EXPECT_LT(MonoNow() - begin, absl::Seconds(2));
}

TEST_F(ServerTest, ShutdownEndsWithTheLastStream) {
  Call attach;
  const auto stream = v1::Rendezvous::NewStub(channel_)->Attach(attach.get());
  ASSERT_TRUE(stream->Write(host::JoinForTest("node0", 2, 2)));
  v1::ServerMessage message;
  ASSERT_TRUE(stream->Read(&message));
  const MonoTime begin = MonoNow();
  std::thread shutdown([this] { server_->Shutdown(kTimeout); });
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

// Runs in a process of its own, which the test below starts and kills.
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
  unsetenv(kPortVariable);
  EXPECT_TRUE(AwaitStatus([](const v1::JobStatus& job) { return job.nodes_size() == 1; }));
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  const MonoTime begin = MonoNow();
  EXPECT_TRUE(AwaitStatus([](const v1::JobStatus& job) { return job.nodes_size() == 0; }));
  const absl::Duration took = MonoNow() - begin;
  // The end of the stream and the grace period for a reconnect count, not the lease of 10 s.
  EXPECT_LT(took, absl::Seconds(2));
  RecordProperty("gone_after_us", static_cast<int>(absl::ToInt64Microseconds(took)));
}

// --- when a server starts, and why it may not ---

TEST_F(ServerTest, SecondServerOnThePort) {
  ServerOptions options;
  options.token = kToken;
  options.port = server_->port();
  EXPECT_THAT(Server::Start(options, core_),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr(absl::StrCat("port ", options.port, " on 127.0.0.1 is in use"))));
}

// Launchers of one job start in the same millisecond, and the one that gets the port serves.
TEST_F(ServerTest, OfManyThatStartOnOnePortAtOnceExactlyOneServes) {
  for (int round = 0; round < 100; ++round) {
    ServerOptions options;
    options.token = kToken;
    options.port = server_->port();
    server_.reset();
    std::vector<absl::StatusOr<std::unique_ptr<Server>>> started;
    for (int i = 0; i < 4; ++i) started.emplace_back(absl::UnknownError("not started"));
    absl::Barrier* const together = new absl::Barrier(static_cast<int>(started.size()));
    std::vector<std::thread> threads;
    for (auto& server : started) {
      threads.emplace_back([&] {
        if (together->Block()) delete together;
        server = Server::Start(options, core_);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (auto& server : started) {
      if (server.ok()) {
        EXPECT_EQ(server_, nullptr) << "two serve";
        server_ = *std::move(server);
      } else {
        EXPECT_THAT(server.status(), StatusIs(absl::StatusCode::kAlreadyExists));
      }
    }
    ASSERT_NE(server_, nullptr) << "nobody serves, round " << round;
  }
}

TEST_F(ServerTest, AConnectionIsNotRefusedForASoftLimit) {
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 128);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ServerOptions options;
  options.token = kToken;
  ASSERT_OK(Server::Start(options, core_));
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(limit.rlim_cur, limit.rlim_max);
}

// Fault (access): A server is to use clear text off loopback without `--insecure` -> It does not
// start, and the error says what to do instead
TEST_F(ServerTest, OffLoopbackATokenAndWhatProtectsItAreRequired) {
  ServerOptions options;
  options.host = "0.0.0.0";
  EXPECT_THAT(Server::Start(options, core_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("needs a token")));
  options.token = kToken;
  // It would cross the network in clear text.
  EXPECT_THAT(Server::Start(options, core_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("names no key")));
  options.security.insecure = true;
  EXPECT_OK(Server::Start(options, core_));
  options.security = {};
  options.security.by_token = true;
  options.token = RandomToken();
  EXPECT_OK(Server::Start(options, core_));
}

TEST_F(ServerTest, AbsentTlsFileIsNamed) {
  ServerOptions options;
  options.security.tls_dir = "/nonexistent";
  EXPECT_THAT(Server::Start(options, core_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("/nonexistent/ca.pem")));
}

// --- which callers a server accepts that proves its identity, by its token's key or by
// certificates; and what happens when those change ---

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
    context.set_deadline(absl::ToChronoTime(absl::Now() + kTimeout));
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
    const MonoTime end = MonoNow() + kTimeout;
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
    return changed_.wait_for(lock, absl::ToChronoSeconds(kTimeout),
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

rpc::ConnectError Why(const absl::Status& status) { return rpc::ConnectErrorOf(status.message()); }

TEST_F(ServerTlsTest, ByItsTokenTheServerIsKnownToAllWhoHaveOneOfIts) {
  const std::string secret = RandomToken();
  Start(ByToken(), secret);
  EXPECT_OK(Ask(ByToken(), secret));
  EXPECT_OK(Ask(ByToken(), UsersToken(secret)));
  // The server accepts only TLS.
  EXPECT_EQ(Why(Ask(rpc::TransportSecurity(), secret)), rpc::ConnectError::kClosedSilently);
}

// So that callers can change over from clear text to TLS one by one.
//
// Fault (versions): During an upgrade some clients speak clear text and others TLS -> With
// `--insecure` a server serves both, told apart by the first byte
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
    EXPECT_EQ(Why(refused), rpc::ConnectError::kOtherKey) << refused;
  }
}

TEST_F(ServerTlsTest, OfACertificateAuthorityBothShowCertificates) {
  const std::string directory = MakeCertificates(), others = MakeCertificates();
  const std::string secret = RandomToken();
  Start(Mutual(directory), secret);
  EXPECT_OK(Ask(Mutual(directory), secret));
  EXPECT_OK(Ask(Mutual(directory), UsersToken(secret)));
  EXPECT_THAT(Ask(Mutual(others), secret), StatusIs(absl::StatusCode::kUnavailable));
  // The server's certificate is valid, the caller's is not.
  std::filesystem::copy_file(directory + "/ca.pem", others + "/ca.pem",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(Ask(Mutual(others), secret), StatusIs(absl::StatusCode::kUnavailable));
}

// Fault (access): With `--tls-dir`, a client that is no launcher of a submitted job shows no
// certificate -> It is refused
TEST_F(ServerTlsTest, OnlyALauncherOfAPartNeedsNoCertificate) {
  const std::string directory = MakeCertificates();
  const std::string secret = RandomToken();
  Start(Mutual(directory), secret);
  for (const std::string& token : {secret, UsersToken(secret)}) {
    EXPECT_THAT(Ask(Mutual(directory, /*nameless=*/true), token),
                StatusIs(absl::StatusCode::kUnauthenticated,
                         HasSubstr("this server requires a client certificate")));
  }
  // The caller is admitted, but may not list jobs.
  EXPECT_THAT(Ask(Mutual(directory, /*nameless=*/true), PartsToken(secret)),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       HasSubstr("is valid for its node's stream only")));
}

// Fault (access): The token is replaced in the file of a running server -> The server accepts the
// new token without a restart, and refuses the old one
TEST_F(ServerTlsTest, AnotherTokenInTheFileCountsAtOnce) {
  const std::string file = MakeTempDir("token") + "/token";
  const std::string before = RandomToken(), after = RandomToken();
  ASSERT_OK(WriteTokenFile(file, before));
  Start(ByToken(), before, file);
  const auto open = Connect(*rpc::MakeChannelCredentials(ByToken(), before));
  ASSERT_OK(Ask(*open, before));
  ASSERT_OK(WriteTokenFile(file, after));
  ASSERT_TRUE(AwaitAnswer(ByToken(), after));
  // The connection is still open, and the old token is not valid any more.
  EXPECT_THAT(Ask(*open, before), StatusIs(absl::StatusCode::kUnauthenticated));
  EXPECT_TRUE(AwaitSaid("refused 127.0.0.1: "));
  EXPECT_EQ(Why(Ask(ByToken(), before)), rpc::ConnectError::kOtherKey);
  EXPECT_EQ(server_->token(), after);
  // A token that makes no key is not accepted.
  ASSERT_OK(WriteTokenFile(file, "a secret that somebody chose"));
  ASSERT_TRUE(AwaitSaid("keeps its token"));
  EXPECT_OK(Ask(ByToken(), after));
}

// Fault (access): Certificates are replaced, one file after the other -> A half-replaced pair is
// ignored, and connections stay
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
  // A certificate that does not match the key.
  replace("cert.pem");
  replace("ca.pem");
  ASSERT_TRUE(AwaitSaid("do not belong together"));
  EXPECT_OK(Ask(Mutual(before), secret));
  replace("key.pem");
  ASSERT_TRUE(AwaitAnswer(Mutual(after), secret));
  EXPECT_OK(Ask(*open, secret));
  EXPECT_THAT(Ask(Mutual(before), secret), StatusIs(absl::StatusCode::kUnavailable));
}

const MonoTime kStart = MonoTime() + absl::Hours(1);

TEST(RefusalLog, TheSameIsSaidOnceAMinute) {
  RefusalLog log;
  EXPECT_EQ(log.Line(kStart, "10.0.0.1", "no token"), "refused 10.0.0.1: no token");
  EXPECT_EQ(log.Line(kStart + absl::Seconds(1), "10.0.0.1", "no token"), std::nullopt);
  EXPECT_EQ(log.Line(kStart + absl::Seconds(59), "10.0.0.1", "no token"), std::nullopt);
  EXPECT_EQ(log.Line(kStart + kRefusalLogInterval, "10.0.0.1", "no token"),
            "refused 10.0.0.1: no token (and 2 more before)");
}

TEST(RefusalLog, AnotherReasonOrAddressIsSaidAtOnce) {
  RefusalLog log;
  log.Line(kStart, "10.0.0.1", "no token");
  EXPECT_EQ(log.Line(kStart, "10.0.0.1", "another token"), "refused 10.0.0.1: another token");
  EXPECT_EQ(log.Line(kStart, "10.0.0.2", "no token"), "refused 10.0.0.2: no token");
}

TEST(RefusalLog, ManyAddressesFillNoDisk) {
  RefusalLog log;
  size_t lines = 0;
  for (int i = 0; i < 1000; ++i) {
    if (log.Line(kStart, absl::StrCat("10.0.0.", i), "no token")) ++lines;
  }
  EXPECT_EQ(lines, kRefusalsLoggedMax);
  EXPECT_EQ(
      log.Line(kStart + kRefusalLogInterval, "10.0.0.1", "no token"),
      absl::StrCat("refused 10.0.0.1: no token (and ", 1000 - kRefusalsLoggedMax, " more before)"));
}

}  // namespace

}  // namespace cadre::service
