// The daemon with the real supervisor and real workers. The server is a script that only gives
// orders; its decisions are tested with the rendezvous core.
#include "agent/daemon.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/display.h"
#include "agent/event_queue.h"
#include "agent/recording_display.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/versions.h"

namespace cadre::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

// Welcomes a node, starts generation 1, and ends the job when all its workers have ended, with the
// status of the first that failed. A Cancel ends it with 128 + signal.
class ScriptedServer : public ServerLink {
 public:
  explicit ScriptedServer(uint32_t workers) : workers_(workers) {}

  void Start(LinkCallbacks callbacks) override {
    callbacks_ = std::move(callbacks);
    if (refuses_) return callbacks_.on_down(absl::UnauthenticatedError("wrong token"));
    callbacks_.on_up(1);
  }

  void Send(uint64_t, v1::NodeMessage message) override {
    if (message.has_join()) return Admit(message.join());
    if (message.has_worker_started() && ++started_ == workers_ && signal_when_started_ != 0) {
      kill(getpid(), signal_when_started_);
    }
    if (message.has_worker_started() && refuses_when_started_) {
      callbacks_.on_down(absl::UnauthenticatedError("wrong token"));
    }
    if (message.has_worker_exited() && refuses_when_ended_) {
      return callbacks_.on_down(absl::UnauthenticatedError("wrong token"));
    }
    if (message.has_worker_exited()) {
      if (message.worker_exited().cause() != v1::FAILURE_CAUSE_UNSPECIFIED && !failure_) {
        failure_ = message.worker_exited();
      }
      if (++exited_ == workers_ && cancelled_by_ == 0) Finish();
    }
    if (message.has_cancel()) {
      cancelled_by_ = message.cancel().signal();
      v1::ServerMessage stop = Message();
      stop.mutable_stop()->mutable_grace()->set_seconds(5);
      callbacks_.on_message(stop);
    }
    if (message.has_node_stopped()) {
      next_port_ = message.node_stopped().held_port();
      Finish();
    }
  }

  void Stop() override { stopped_ = true; }

  int signal_when_started_ = 0;
  bool refuses_ = false;
  bool refuses_when_started_ = false;
  bool refuses_when_ended_ = false;
  uint32_t first_port_ = 0;
  uint32_t next_port_ = 0;
  bool stopped_ = false;

 private:
  v1::ServerMessage Message() const {
    v1::ServerMessage message;
    message.set_job("j");
    message.set_generation(1);
    message.set_server_id(1);
    return message;
  }

  void Admit(const v1::Join& join) {
    first_port_ = join.held_port();
    v1::ServerMessage welcome = Message();
    welcome.mutable_welcome()->set_server_id(1);
    *welcome.mutable_welcome()->mutable_version() = rpc::ThisVersion();
    *welcome.mutable_welcome()->mutable_spec() = join.spec();
    callbacks_.on_message(welcome);
    v1::ServerMessage assign = Message();
    assign.mutable_assign()->set_nodes(1);
    assign.mutable_assign()->set_local_world_size(workers_);
    assign.mutable_assign()->set_world_size(workers_);
    assign.mutable_assign()->set_master_addr("127.0.0.1");
    assign.mutable_assign()->set_master_port(join.held_port());
    callbacks_.on_message(assign);
  }

  void Finish() {
    v1::ServerMessage finished = Message();
    v1::Verdict& verdict = *finished.mutable_finished()->mutable_verdict();
    verdict.set_job("j");
    verdict.set_outcome(v1::SUCCEEDED);
    if (failure_) {
      verdict.set_outcome(v1::FAILED);
      verdict.set_exit_status(failure_->exit().exit_code());
      verdict.mutable_root_cause()->set_node("n");
      *verdict.mutable_root_cause()->mutable_exit() = failure_->exit();
    }
    if (cancelled_by_ != 0) {
      verdict.set_outcome(v1::CANCELLED_PHASE);
      verdict.set_exit_status(128 + cancelled_by_);
    }
    callbacks_.on_message(finished);
  }

  const uint32_t workers_;
  LinkCallbacks callbacks_;
  uint32_t started_ = 0;
  uint32_t exited_ = 0;
  int cancelled_by_ = 0;
  std::optional<v1::WorkerExited> failure_;
};

class DaemonTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* const before = getenv("CADRE_SUPERVISOR")) supervisor_before_ = before;
    setenv("CADRE_SUPERVISOR",
           std::filesystem::absolute("agent/supervisor/cadre-supervisor").c_str(), 1);
    // As the launcher does before its first thread.
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&signals, signal);
    sigprocmask(SIG_BLOCK, &signals, &blocked_before_);
    logs_ = testing::TempDir() + "/daemon_XXXXXX";
    ASSERT_NE(mkdtemp(logs_.data()), nullptr);
  }
  void TearDown() override {
    sigprocmask(SIG_SETMASK, &blocked_before_, nullptr);
    unsetenv("CADRE_SUPERVISOR");
    if (supervisor_before_) setenv("CADRE_SUPERVISOR", supervisor_before_->c_str(), 1);
  }

  absl::StatusOr<Exit> Run(ScriptedServer& server, const std::vector<std::string>& command) {
    DaemonOptions options;
    options.core.job = "j";
    options.core.incarnation = 1;
    options.core.join.set_node("n");
    options.core.join.set_host("host");
    for (const std::string& word : command) options.core.join.mutable_spec()->add_command(word);
    options.output.log_dir = logs_;
    auto supervisor = supervisor::Client::Start();
    if (!supervisor.ok()) return supervisor.status();
    return RunAgent(options, *std::move(supervisor), server, display_);
  }

  std::string ReadLog(const std::string& name) const {
    std::stringstream content;
    content << std::ifstream(absl::StrCat(logs_, "/j/", name)).rdbuf();
    return content.str();
  }

  std::optional<std::string> supervisor_before_;
  sigset_t blocked_before_;
  std::string logs_;
  RecordingDisplay display_;
};

// The launcher has its own session, in which no shell could continue it: the kernel suspends
// nothing then, and the worker is continued at once.
TEST_F(DaemonTest, Suspended_ItsWorkersStandStillAsLongAsItDoes) {
  const pid_t launcher = fork();
  if (launcher == 0) {
    setsid();
    setenv("LAUNCHER", absl::StrCat(getpid()).c_str(), 1);
    ScriptedServer server(1);
    const auto exit = Run(server, {"/bin/sh", "-c",
                                   "trap 'echo went on; exit 0' CONT; kill -TSTP $LAUNCHER; "
                                   "sleep 20 & wait; exit 1"});
    const bool went_on = absl::StrContains(display_.standard_output, "went on");
    _exit(exit.ok() && exit->status == 0 && went_on ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(launcher, &status, 0), launcher);
  EXPECT_EQ(status, 0);
}

TEST_F(DaemonTest, TwoWorkers_OutputFilesAndVerdict) {
  ScriptedServer server(2);
  const auto exit = Run(server, {"/bin/sh", "-c", "echo out $RANK of $WORLD_SIZE; echo err >&2"});
  ASSERT_OK(exit);
  EXPECT_EQ(exit->status, 0);
  EXPECT_THAT(display_.standard_output, HasSubstr("[host:0] out 0 of 2\n"));
  EXPECT_THAT(display_.standard_output, HasSubstr("[host:1] out 1 of 2\n"));
  EXPECT_THAT(display_.standard_error, HasSubstr("[host:1] err\n"));
  EXPECT_EQ(ReadLog("generation_1/rank_1/stdout.log"), "out 1 of 2\n");
  EXPECT_EQ(ReadLog("generation_1/rank_0/stderr.log"), "err\n");
  EXPECT_THAT(ReadLog("verdict.json"), HasSubstr("\"SUCCEEDED\""));
  EXPECT_NE(ReadLog("timeline.json"), "");
  EXPECT_EQ(display_.finished, 1);
  EXPECT_TRUE(server.stopped_);
  EXPECT_NE(server.first_port_, 0u);
}

TEST_F(DaemonTest, FailingWorker_GivesItsStatusAndErrorFile) {
  const std::string parents = logs_ + "/parent.json";
  setenv("TORCHELASTIC_ERROR_FILE", parents.c_str(), 1);
  ScriptedServer server(1);
  const auto exit = Run(server, {"/bin/sh", "-c",
                                 "echo '{\"message\":{\"message\":\"boom\"}}' > "
                                 "$TORCHELASTIC_ERROR_FILE; printf partial; exit 7"});
  unsetenv("TORCHELASTIC_ERROR_FILE");
  ASSERT_OK(exit);
  EXPECT_EQ(exit->status, 7);
  EXPECT_EQ(display_.standard_output, "[host:0] partial\n");
  std::stringstream handed_on;
  handed_on << std::ifstream(parents).rdbuf();
  EXPECT_THAT(handed_on.str(), HasSubstr("\"errorCode\":7"));
}

TEST_F(DaemonTest, Signal_CancelsAndNextPortIsHeld) {
  ScriptedServer server(1);
  server.signal_when_started_ = SIGINT;
  const auto exit = Run(server, {"/bin/sleep", "1000"});
  ASSERT_OK(exit);
  EXPECT_EQ(exit->status, 130);
  EXPECT_THAT(display_.own, HasSubstr("stopping the job (another signal"));
  EXPECT_NE(server.next_port_, 0u);
}

TEST_F(DaemonTest, Progress_ReachesTheDisplay) {
  ScriptedServer server(1);
  const auto exit =
      Run(server, {"/bin/sh", "-c", "eval \"echo step=120 loss=0.5 >&$CADRE_PROGRESS_FD\""});
  ASSERT_OK(exit);
  ASSERT_EQ(display_.progress.size(), 1u);
  EXPECT_EQ(display_.progress[0].step(), 120u);
}

TEST_F(DaemonTest, NoSuchProgram_IsReportedAsSuch) {
  ScriptedServer server(1);
  const auto exit = Run(server, {"/no/such/program"});
  ASSERT_OK(exit);
  EXPECT_EQ(exit->verdict.root_cause().exit().exec_errno(), ENOENT);
}

TEST_F(DaemonTest, LogDirectoryThatCannotBeMade_FailsTheWorkersNotTheAgent) {
  logs_ = "/proc/none";
  ScriptedServer server(2);
  const auto exit = Run(server, {"/bin/true"});
  ASSERT_OK(exit);
  const v1::WorkerExit& worker = exit->verdict.root_cause().exit();
  EXPECT_THAT(worker.last_lines(), HasSubstr("/proc/none"));
  EXPECT_EQ(worker.exec_step(), "log directory /proc/none");
  EXPECT_EQ(worker.exec_errno(), ENOENT);
}

TEST_F(DaemonTest, RunWithoutAVerdict_LeavesItsOwnInPlaceOfAnEarlierOne) {
  const std::string job = logs_ + "/j";
  ASSERT_TRUE(std::filesystem::create_directories(job));
  std::ofstream(job + "/verdict.json") << "\"SUCCEEDED\"";
  std::ofstream(job + "/timeline.json") << "earlier";
  ScriptedServer server(1);
  server.refuses_when_started_ = true;
  const auto exit = Run(server, {"/bin/sleep", "1000"});
  ASSERT_OK(exit);
  EXPECT_EQ(exit->status, 69);
  const std::string verdict = ReadLog("verdict.json");
  EXPECT_THAT(verdict, HasSubstr("\"FAILED\""));
  EXPECT_THAT(verdict, HasSubstr("\"exit_status\": 69"));
  EXPECT_THAT(verdict, HasSubstr("refuses this token"));
  EXPECT_THAT(ReadLog("timeline.json"), testing::Not(HasSubstr("earlier")));
}

TEST_F(DaemonTest, RunWithoutAVerdict_SaysWhichWorkerFailed) {
  ScriptedServer server(1);
  server.refuses_when_ended_ = true;
  const auto exit = Run(server, {"/bin/sh", "-c", "echo on fire >&2; exit 7"});
  ASSERT_OK(exit);
  EXPECT_EQ(exit->status, 69);
  const std::string verdict = ReadLog("verdict.json");
  EXPECT_THAT(verdict, HasSubstr("refuses this token"));
  EXPECT_THAT(verdict, HasSubstr("exited with status 7 in generation 1"));
  EXPECT_THAT(verdict, HasSubstr("on fire"));
  EXPECT_THAT(verdict, HasSubstr("\"generations\": \"1\""));
}

TEST_F(DaemonTest, ServerThatNeverTookTheNode_LeavesNoEarlierVerdict) {
  ASSERT_TRUE(std::filesystem::create_directories(logs_ + "/j"));
  std::ofstream(logs_ + "/j/verdict.json") << "\"SUCCEEDED\"";
  ScriptedServer server(1);
  server.refuses_ = true;
  const auto exit = Run(server, {"/bin/true"});
  ASSERT_OK(exit);
  EXPECT_EQ(exit->status, 69);
  EXPECT_THAT(ReadLog("verdict.json"), HasSubstr("\"FAILED\""));
}

TEST_F(DaemonTest, FirstWorkers_StartWithoutAnEarlierVerdict) {
  ASSERT_TRUE(std::filesystem::create_directories(logs_ + "/j"));
  std::ofstream(logs_ + "/j/verdict.json") << "\"SUCCEEDED\"";
  ScriptedServer server(1);
  const auto exit = Run(server, {"/bin/sh", "-c", "test ! -e \"$0\"", logs_ + "/j/verdict.json"});
  ASSERT_OK(exit);
  EXPECT_EQ(exit->status, 0);
}

bool Readable(const EventQueue& queue) {
  pollfd wait = {queue.fd(), POLLIN, 0};
  return poll(&wait, 1, 0) == 1;
}

constexpr MonoTime kEver = MonoTime::Never();
MonoTime NeverDue() { return kEver; }

// A queue that records the events it handles.
class EventQueueTest : public ::testing::Test {
 protected:
  std::unique_ptr<EventQueue> Make(std::function<MonoTime()> due = nullptr) {
    auto queue = EventQueue::Make([this](const AgentEvent& event) { handled_.push_back(event); },
                                  std::move(due));
    EXPECT_OK(queue);
    return *std::move(queue);
  }

  std::vector<AgentEvent> handled_;
};

TEST_F(EventQueueTest, Push_MakesItReadableUntilAllAreTaken) {
  const auto queue = Make();
  EXPECT_FALSE(Readable(*queue));
  queue->Push(LinkUp{});
  queue->Push(SignalReceived{2});
  EXPECT_TRUE(Readable(*queue));
  EXPECT_TRUE(handled_.empty());
  queue->HandleAll();
  ASSERT_EQ(handled_.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<LinkUp>(handled_[0]));
  EXPECT_FALSE(Readable(*queue));
  queue->HandleAll();
  EXPECT_EQ(handled_.size(), 2u);
}

TEST_F(EventQueueTest, Limits_OneMoreOverflows) {
  const auto queue = Make();
  for (size_t i = 0; i < kMaxQueuedEvents; ++i) queue->Push(AgentTick{});
  EXPECT_FALSE(queue->overflowed());
  queue->Push(AgentTick{});
  EXPECT_TRUE(queue->overflowed());
  queue->HandleAll();
  EXPECT_EQ(handled_.size(), kMaxQueuedEvents);
}

constexpr size_t kThreads = 4, kEach = 1000;

// Starts kThreads threads, each of which pushes the event many times.
std::vector<std::thread> Pushing(EventQueue& queue, const AgentEvent& event) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&queue, event] {
      for (size_t j = 0; j < kEach; ++j) queue.Push(event);
    });
  }
  return threads;
}

TEST_F(EventQueueTest, ManyThreads_LoseNothing) {
  const auto queue = Make();
  std::vector<std::thread> threads = Pushing(*queue, AgentTick{});
  while (handled_.size() < kThreads * kEach) {
    pollfd wait = {queue->fd(), POLLIN, 0};
    ASSERT_EQ(poll(&wait, 1, 10000), 1);
    queue->HandleAll();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(handled_.size(), kThreads * kEach);
}

AgentEvent Answer(uint64_t request_id) {
  ServerMessageReceived said;
  said.message.mutable_store()->set_request_id(request_id);
  return said;
}

uint64_t RequestOf(const AgentEvent& event) {
  const auto* asked = std::get_if<StoreRequested>(&event);
  return asked != nullptr ? asked->request.request_id()
                          : std::get<ServerMessageReceived>(event).message.store().request_id();
}

TEST_F(EventQueueTest, StoreEvents_AreHandledByThePosterWhileTheLoopRests) {
  MonoTime due = kEver;
  const auto queue = Make([&] { return due; });
  queue->Push(Answer(1));
  EXPECT_TRUE(handled_.empty()) << "the loop does not rest";
  queue->HandleAll();
  queue->Rest(kEver);
  v1::StoreRequest request;
  request.set_request_id(2);
  queue->Push(StoreRequested{request});
  queue->Push(Answer(3));
  ASSERT_EQ(handled_.size(), 3u);
  EXPECT_EQ(RequestOf(handled_[1]), 2u);
  EXPECT_EQ(RequestOf(handled_[2]), 3u);
  EXPECT_FALSE(Readable(*queue));
  due = MonoTime();
  queue->Push(Answer(4));
  EXPECT_EQ(handled_.size(), 4u);
  EXPECT_TRUE(Readable(*queue)) << "the loop has to look around";
  queue->HandleAll();
  EXPECT_FALSE(Readable(*queue));
}

TEST_F(EventQueueTest, StoreEvents_DoNotOvertakeWhatIsTheLoops) {
  const auto queue = Make(NeverDue);
  queue->Rest(kEver);
  queue->Push(LinkUp{});
  queue->Push(Answer(1));
  EXPECT_TRUE(handled_.empty());
  queue->HandleAll();
  ASSERT_EQ(handled_.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<LinkUp>(handled_[0]));
}

// As with a request that is answered at once, while it is handled.
TEST(EventQueue, WhatIsPostedWhileHandling_IsHandledNext) {
  std::vector<uint64_t> handled;
  bool link_up = false;
  EventQueue* posts_to = nullptr;
  const auto handle = [&](const AgentEvent& event) {
    if (std::holds_alternative<LinkUp>(event)) {
      link_up = true;
      return;
    }
    const uint64_t request = RequestOf(event);
    if (request == 1) posts_to->Push(Answer(2));
    if (request == 2) posts_to->Push(LinkUp{});
    handled.push_back(request);
  };
  auto queue = EventQueue::Make(handle, NeverDue);
  ASSERT_OK(queue);
  posts_to = queue->get();
  posts_to->Rest(kEver);
  posts_to->Push(Answer(1));
  EXPECT_THAT(handled, testing::ElementsAre(1, 2));
  EXPECT_TRUE(Readable(*posts_to));
  EXPECT_FALSE(link_up);
  posts_to->HandleAll();
  EXPECT_TRUE(link_up);
}

TEST_F(EventQueueTest, ManyThreads_HandleOneAtATime) {
  const auto queue = Make(NeverDue);  // handlers run one at a time, which guards what they use
  std::vector<std::thread> threads = Pushing(*queue, Answer(1));
  for (size_t i = 0; i < kEach; ++i) {
    queue->HandleAll();
    queue->Rest(kEver);
  }
  for (std::thread& thread : threads) thread.join();
  queue->HandleAll();
  EXPECT_EQ(handled_.size(), kThreads * kEach);
}

TEST(StatusViewTest, StatusIsShownAtOnce_ProgressNowAndThen) {
  RecordingDisplay display;
  std::vector<v1::Progress> progress;
  StatusView view(display, [&progress] { return progress; });
  const MonoTime start = MonoTime::FromMicros(1000000);
  v1::JobStatus status;
  status.set_name("j");
  view.Set(status, start);
  view.Set(status, start);
  EXPECT_EQ(display.drawn, 2);
  EXPECT_EQ(display.status.name(), "j");

  progress.emplace_back();
  view.RedrawIfDue(start + (kProgressRedraw - absl::Milliseconds(1)));
  EXPECT_EQ(display.drawn, 2);
  view.RedrawIfDue(start + kProgressRedraw);
  EXPECT_EQ(display.drawn, 3);
  EXPECT_THAT(display.progress, SizeIs(1));
  EXPECT_EQ(display.status.name(), "j");
  view.Redraw(start + kProgressRedraw);
  EXPECT_EQ(display.drawn, 4);
}

// Otherwise the last state of a progress bar would not be drawn until more output comes.
TEST(StatusViewTest, WhatCameTooSoonIsShownALittleLater) {
  RecordingDisplay display;
  StatusView view(display, [] { return std::vector<v1::Progress>(); });
  const MonoTime start = MonoTime::FromMicros(1000000);
  view.RedrawIfOld(start);
  EXPECT_EQ(display.drawn, 0);
  view.Set(v1::JobStatus(), start);
  view.RedrawIfDue(start + absl::Milliseconds(10));
  view.RedrawIfOld(start + absl::Milliseconds(20));
  EXPECT_EQ(display.drawn, 1);
  view.RedrawIfOld(start + kProgressRedraw);
  EXPECT_EQ(display.drawn, 2);
  view.RedrawIfOld(start + 2 * kProgressRedraw);
  EXPECT_EQ(display.drawn, 2);
}

TEST(StatusViewTest, WhatIsShownOfProgressAges) {
  RecordingDisplay display;
  StatusView view(display, [] { return std::vector<v1::Progress>(); });
  const MonoTime start = MonoTime::FromMicros(1000000);
  view.Set(v1::JobStatus(), start);
  view.RedrawIfOld(start + absl::Milliseconds(999));
  EXPECT_EQ(display.drawn, 1);
  v1::JobStatus status;
  status.mutable_progress()->set_quiet_us(500000);
  view.Set(status, start);
  view.RedrawIfOld(start + absl::Milliseconds(999));
  EXPECT_EQ(display.drawn, 2);
  view.RedrawIfOld(start + absl::Seconds(25));
  EXPECT_EQ(display.drawn, 3);
  EXPECT_EQ(display.status.progress().quiet_us(), 25500000);
}

}  // namespace
}  // namespace cadre::agent
