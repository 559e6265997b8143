// NodeWorkers with the real supervisor and real workers; the test gives the core's commands.
#include "agent/node_workers.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <variant>

#include "agent/recording_display.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/failure.pb.h"
#include "tests/testing/cgroups.h"
#include "tests/testing/file_systems.h"

namespace cadre::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr int kTestTimeoutMs = 20000;

std::string TemporaryDirectory(std::string name) {
  EXPECT_NE(mkdtemp(name.data()), nullptr);
  return name;
}

class NodeWorkersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.core.job = "j";
    options_.core.join.set_host("h");
    options_.output.log_dir = root_ + "/logs";
    LocalService::Options local;
    local.job = "j";
    local.parent = root_;
    auto opened = LocalService::Open(std::move(local));
    ASSERT_OK(opened);
    local_ = *std::move(opened);
  }
  void TearDown() override {
    workers_.reset();
    local_.reset();
    std::filesystem::remove_all(root_);
  }

  void Run(const std::string& script) {
    for (const char* word : {"/bin/sh", "-c"}) options_.core.join.mutable_spec()->add_command(word);
    options_.core.join.mutable_spec()->add_command(script);
    auto client = supervisor::Client::Start();
    ASSERT_OK(client);
    supervisor_pid_ = (*client)->pid();
    auto hold = PortReservation::Acquire("");
    ASSERT_OK(hold);
    const auto emit = [this](AgentEvent event) { events_.push_back(std::move(event)); };
    workers_ = std::make_unique<NodeWorkers>(
        options_, *std::move(client), *std::move(hold),
        NodeWorkers::Uses{display_, status_, *local_, logs_, emit, [](AgentEvent) {}});
  }

  StartWorkers Assignment(uint64_t generation, std::set<uint32_t> kept = {}) {
    StartWorkers command = {{1, generation}, {}, std::move(kept)};
    command.assign.set_run("1Z");
    command.assign.set_nodes(1);
    command.assign.set_first_rank(4);
    command.assign.set_local_world_size(2);
    command.assign.set_world_size(6);
    return command;
  }

  // The events of one kind that have come.
  template <typename Event>
  std::vector<Event> Of() const {
    std::vector<Event> found;
    for (const AgentEvent& event : events_) {
      if (const auto* one = std::get_if<Event>(&event)) found.push_back(*one);
    }
    return found;
  }
  // Reads the supervisor until `count` events of one kind have come.
  template <typename Event>
  std::vector<Event> Wait(size_t count) {
    while (Of<Event>().size() < count) {
      pollfd wait = {workers_->worker_supervisor().fd(), POLLIN, 0};
      if (poll(&wait, 1, kTestTimeoutMs) != 1) {
        ADD_FAILURE() << "only " << Of<Event>().size() << " of " << count;
        break;
      }
      const auto frames = workers_->worker_supervisor().Read();
      if (!frames.ok()) workers_->OnSupervisorGone(std::string(frames.status().message()));
      if (!frames.ok()) continue;
      for (const supervisor::Frame& frame : *frames) workers_->OnFrame(frame);
    }
    return Of<Event>();
  }

  // A short path, because of the sockets in it.
  const std::string root_ = TemporaryDirectory("/tmp/cadre_test_XXXXXX");
  DaemonOptions options_;
  RecordingDisplay display_;
  StatusView status_{display_, [this] { return workers_->Progress(); }};
  RunLogs logs_{root_ + "/logs", "j"};
  std::unique_ptr<LocalService> local_;
  std::vector<AgentEvent> events_;
  pid_t supervisor_pid_ = 0;
  std::unique_ptr<NodeWorkers> workers_;
};

TEST_F(NodeWorkersTest, AGenerationFromStartToStop) {
  Run("echo $RANK; eval \"echo step=7 >&$CADRE_PROGRESS_FD\"; exec sleep 1000");
  EXPECT_EQ(workers_->next_poll(), MonoTime::Never());
  workers_->Start(Assignment(1));
  EXPECT_NE(workers_->next_poll(), MonoTime::Never());
  EXPECT_THAT(Wait<WorkerRuns>(2), SizeIs(2));
  const auto progress = Wait<WorkerProgress>(2);
  EXPECT_EQ(progress.front().generation, 1u);
  EXPECT_THAT(display_.progress, SizeIs(testing::Ge(1)));
  // An order for an earlier generation.
  workers_->Stop({0, absl::ZeroDuration()});
  workers_->Stop({1, absl::Seconds(20)});
  const auto gone = Wait<AllGone>(1);
  EXPECT_NE(gone.front().held_port, 0u);
  EXPECT_THAT(Of<WorkerDied>(), SizeIs(2));
  EXPECT_EQ(Of<WorkerDied>()[0].exit.signal(), SIGTERM);
  EXPECT_THAT(display_.standard_output, HasSubstr("[h:4] 4\n"));
  EXPECT_THAT(display_.standard_output, HasSubstr("[h:5] 5\n"));
  EXPECT_TRUE(std::filesystem::exists(root_ + "/logs/j/generation_1/rank_5/stdout.log"));
  EXPECT_EQ(workers_->next_poll(), MonoTime::Never());
}

// The thread that executes the core's commands also renews the node's lease.
//
// Fault (display): The log directory is on a file system that does not answer -> A generation ends
// and the next begins within 8 s, or 1 s once that is known
TEST_F(NodeWorkersTest, ALogDirectoryThatStandsStillHoldsUpNoGeneration) {
  auto disk = HangingFileSystem::Mount();
  if (absl::IsFailedPrecondition(disk.status())) GTEST_SKIP() << disk.status().message();
  ASSERT_OK(disk);
  std::filesystem::create_symlink((*disk)->path(), root_ + "/logs");
  Run("echo up; exec sleep 1000");
  workers_->Start(Assignment(1));
  Wait<WorkerRuns>(2);
  EXPECT_TRUE(std::filesystem::exists((*disk)->behind() + "/j/run_1Z/generation_1/rank_5"));
  (*disk)->Hang();
  MonoTime begin = MonoNow();
  workers_->Stop({1, absl::ZeroDuration()});
  Wait<AllGone>(1);
  workers_->Start(Assignment(2));
  EXPECT_LT(MonoNow() - begin, absl::Seconds(8));
  EXPECT_THAT(Wait<WorkerRuns>(4), SizeIs(4));
  EXPECT_THAT(display_.own, HasSubstr("its file system does not answer"));
  workers_->Stop({2, absl::ZeroDuration()});
  Wait<AllGone>(2);
  // The file system is known not to answer from now on.
  begin = MonoNow();
  workers_->Start(Assignment(3));
  EXPECT_LT(MonoNow() - begin, absl::Seconds(1));
  workers_->Stop({3, absl::ZeroDuration()});
  Wait<AllGone>(3);
  (*disk)->Resume();
}

// Polls do not wait for it either when output that goes to log files alone is checked for a silence
// timeout.
//
// Fault (display): The log's file system does not answer, with `timeouts.silence` and output that
// goes to files alone -> The lease is renewed in time; until file sizes arrive (1 s) every worker
// counts as one that writes
TEST_F(NodeWorkersTest, ALogDirectoryThatStandsStillHoldsUpNoPoll) {
  auto disk = HangingFileSystem::Mount();
  if (absl::IsFailedPrecondition(disk.status())) GTEST_SKIP() << disk.status().message();
  ASSERT_OK(disk);
  std::filesystem::create_symlink((*disk)->path(), root_ + "/logs");
  options_.output.standard_output = options_.output.standard_error = {{true, false}, {true, false}};
  options_.core.join.mutable_spec()->mutable_timeouts()->mutable_silence()->set_seconds(60);
  Run("exec sleep 1000");
  workers_->Start(Assignment(1));
  Wait<WorkerRuns>(2);
  (*disk)->Hang();
  const MonoTime begin = MonoNow();
  workers_->Poll(begin + absl::Seconds(1));
  EXPECT_THAT(Of<WorkerWrote>(), SizeIs(0));
  workers_->Poll(begin + absl::Seconds(3));
  EXPECT_THAT(Of<WorkerWrote>(), SizeIs(2)) << "nobody is silent for what cannot be seen";
  EXPECT_LT(MonoNow() - begin, absl::Seconds(1));
  workers_->Stop({1, absl::ZeroDuration()});
  Wait<AllGone>(1);
  (*disk)->Resume();
}

// Workers whose output goes to a reader that has stopped reading, such as a pager left alone, must
// not count as hanging.
TEST_F(NodeWorkersTest, NobodyIsSilentWhoseOutputIsNotTaken) {
  options_.core.join.mutable_spec()->mutable_timeouts()->mutable_silence()->set_seconds(60);
  Run("exec sleep 1000");
  workers_->Start(Assignment(1));
  Wait<WorkerRuns>(2);
  const MonoTime begin = MonoNow();
  workers_->Poll(begin + absl::Seconds(1));
  EXPECT_THAT(Of<WorkerWrote>(), SizeIs(0));
  workers_->ReadOutput(false);
  workers_->Poll(begin + absl::Seconds(2));
  EXPECT_THAT(Of<WorkerWrote>(), SizeIs(2));
  workers_->ReadOutput(true);
  workers_->Poll(begin + absl::Seconds(3));
  EXPECT_THAT(Of<WorkerWrote>(), SizeIs(2));
  workers_->Stop({1, absl::ZeroDuration()});
  Wait<AllGone>(1);
}

// Fault (display): The log directory cannot be made again at a restart -> Workers start without log
// files, and the launcher says so; before a job's first start it is an error
TEST_F(NodeWorkersTest, ALogDirectoryThatIsLostLaterEndsNoJob) {
  Run("exec sleep 1000");
  workers_->Start(Assignment(1));
  Wait<WorkerRuns>(2);
  workers_->Stop({1, absl::ZeroDuration()});
  Wait<AllGone>(1);
  std::filesystem::remove_all(root_ + "/logs");
  std::ofstream(root_ + "/logs") << "a file in its place";
  workers_->Start(Assignment(2));
  EXPECT_THAT(Wait<WorkerRuns>(4), SizeIs(4));
  EXPECT_THAT(display_.own, HasSubstr("Not a directory; the workers run"));
}

TEST_F(NodeWorkersTest, WorkersRunTheSpecThatTheJobBeginsWith) {
  Run("exit 1");
  v1::JobSpec spec = options_.core.join.spec();
  spec.set_command(2, "exit 7");
  workers_->Begin(BeginJob{spec});
  workers_->Start(Assignment(1));
  EXPECT_EQ(Wait<WorkerDied>(2)[0].exit.exit_code(), 7);
}

// The server's spec has the script itself and no variables of this node.
TEST_F(NodeWorkersTest, AScriptRunsAsTheClustersAgentWroteIt) {
  options_.own_spec.emplace();
  for (const char* word : {"/bin/sh", "-c", "echo $SLURM_JOB_ID $1; echo rank $RANK. >&2", "sh"}) {
    options_.own_spec->add_command(word);
  }
  options_.own_spec->add_command("${local_rank}");
  (*options_.own_spec->mutable_env())["SLURM_JOB_ID"] = "7";
  Run("echo what people see in its status");
  BeginJob job = {options_.core.join.spec()};
  job.spec.mutable_batch()->set_script("#!/bin/sh\n");
  job.spec.mutable_logs()->set_stdout_file(root_ + "/slurm-%j.out");
  workers_->Begin(job);
  StartWorkers command = Assignment(1);
  command.assign.set_first_rank(0);
  command.assign.set_local_world_size(1);
  command.assign.set_world_size(1);
  workers_->Start(command);
  EXPECT_THAT(Wait<WorkerDied>(1), SizeIs(1));
  std::ifstream file(root_ + "/slurm-7.out");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "7 ${local_rank}\nrank .\n");
}

// Fault (queue): A batch job is cancelled, or ended because its time is over -> The last lines of
// its output say so, in Slurm's words
TEST_F(NodeWorkersTest, TheReasonWhyAScriptIsEndedIsInItsOutput) {
  options_.own_spec.emplace();
  for (const char* word : {"/bin/sh", "-c", "exec sleep 1000"}) {
    options_.own_spec->add_command(word);
  }
  (*options_.own_spec->mutable_env())["SLURM_JOB_ID"] = "7";
  options_.core.join.set_node("n1");
  Run("echo what people see in its status");
  BeginJob job = {options_.core.join.spec()};
  job.spec.mutable_batch()->set_script("#!/bin/sh\n");
  job.spec.mutable_logs()->set_stdout_file(root_ + "/slurm-%j.out");
  workers_->Begin(job);
  StartWorkers command = Assignment(1);
  command.assign.set_first_rank(0);
  command.assign.set_local_world_size(1);
  command.assign.set_world_size(1);
  workers_->Start(command);
  Wait<WorkerRuns>(1);
  workers_->NoteEnd({1, v1::TOTAL_TIMEOUT});
  workers_->NoteEnd({2, v1::REQUEUED});  // of another generation
  workers_->Stop({1, absl::ZeroDuration()});
  Wait<AllGone>(1);
  ASSERT_TRUE(workers_->log_files().Drain(absl::Milliseconds(kTestTimeoutMs)));
  std::ifstream file(root_ + "/slurm-7.out");
  const std::string content(std::istreambuf_iterator<char>(file), {});
  EXPECT_THAT(content, StartsWith("cadre: *** JOB 7 ON n1 CANCELLED AT 2"));
  EXPECT_THAT(content, EndsWith(" DUE TO TIME LIMIT ***\n"));
}

TEST_F(NodeWorkersTest, AnOutputThatCannotBeWrittenLacksTheReasonAndNothingElseChanges) {
  Run("exec sleep 1000");
  workers_->Start(Assignment(1));
  Wait<WorkerRuns>(2);
  std::filesystem::remove_all(root_ + "/logs");
  workers_->NoteEnd({1, v1::CANCELLED});
  workers_->Stop({1, absl::ZeroDuration()});
  EXPECT_THAT(Wait<AllGone>(1), SizeIs(1));
  EXPECT_TRUE(workers_->log_files().Drain(absl::Milliseconds(kTestTimeoutMs)));
}

TEST_F(NodeWorkersTest, ASignalGoesToTheWorkersThatItIsFor) {
  Run("exec sleep 1000");
  workers_->Start(Assignment(1));
  Wait<WorkerRuns>(2);
  workers_->Signal({2, SIGUSR1, {0, 1}});  // another generation
  workers_->Signal({1, SIGUSR2, {1}});
  const auto died = Wait<WorkerDied>(1);
  EXPECT_EQ(died.front().local_rank, 1u);
  EXPECT_EQ(died.front().exit.signal(), SIGUSR2);
  workers_->Signal({1, SIGUSR1, {0}});
  EXPECT_EQ(Wait<WorkerDied>(2).back().exit.signal(), SIGUSR1);
}

TEST_F(NodeWorkersTest, AWorkerThatIsKeptGoesOn) {
  Run("exec sleep 1000");
  workers_->Start(Assignment(1));
  const pid_t kept =
      Wait<WorkerRuns>(2)[0].local_rank == 0 ? Of<WorkerRuns>()[0].pid : Of<WorkerRuns>()[1].pid;
  workers_->Stop({1, absl::Seconds(20), {0}, "another worker failed"});
  EXPECT_THAT(Wait<AllGone>(1).front().kept, ElementsAre(0));
  events_.clear();
  StartWorkers next = Assignment(2, {0});
  next.assign.set_first_rank(0);
  workers_->Start(next);
  EXPECT_EQ(Wait<WorkerRuns>(1).front().local_rank, 1u);
  EXPECT_EQ(std::filesystem::read_symlink(root_ + "/logs/j/run_1Z/generation_2/rank_0"),
            "../generation_1/rank_4");
  EXPECT_EQ(kill(kept, SIGKILL), 0);
  const auto died = Wait<WorkerDied>(1);
  EXPECT_EQ(died.front().generation, 2u);
  EXPECT_EQ(died.front().exit.pid(), kept);
}

TEST_F(NodeWorkersTest, ALostSupervisorIsReplaced_AndItsWorkersHaveDied) {
  Run("exec sleep 1000");
  workers_->Start(Assignment(1));
  Wait<WorkerRuns>(2);
  kill(supervisor_pid_, SIGKILL);
  const auto died = Wait<WorkerDied>(2);
  EXPECT_EQ(died[0].exit.signal(), SIGKILL);
  EXPECT_THAT(died[0].exit.ended_with(), HasSubstr("supervisor"));
  EXPECT_NE(died[0].exit.pid(), 0);
  events_.clear();
  workers_->Stop({1, absl::ZeroDuration()});
  EXPECT_THAT(Of<AllGone>(), SizeIs(1));
  workers_->Start(Assignment(2));
  EXPECT_THAT(Wait<WorkerRuns>(2), SizeIs(2));
}

TEST_F(NodeWorkersTest, WhatALostSupervisorLeftAndSigkillDoesNotEndIsAwaited) {
  auto freezer = Freezer::Make();
  if (!freezer.ok()) GTEST_SKIP() << freezer.status();
  Run("exec sleep 1000");
  workers_->Start(Assignment(1));
  const WorkerRuns frozen = Wait<WorkerRuns>(2)[1];
  ASSERT_OK((*freezer)->Freeze(frozen.pid));
  kill(supervisor_pid_, SIGKILL);
  const auto unkillable = Wait<WorkerUnkillable>(1);
  EXPECT_EQ(unkillable[0].remains.local_rank(), frozen.local_rank);
  EXPECT_EQ(unkillable[0].remains.processes(0).pid(), frozen.pid);
  EXPECT_THAT(Of<WorkerDied>(), SizeIs(1));
  workers_->Stop({1, absl::ZeroDuration()});
  workers_->Poll(workers_->next_poll());
  EXPECT_THAT(Of<AllGone>(), SizeIs(0));
  ASSERT_OK((*freezer)->Thaw());
  // It is sent SIGKILL at each poll, and ends in a moment.
  const MonoTime end = MonoNow() + absl::Milliseconds(kTestTimeoutMs);
  while (Of<AllGone>().empty() && MonoNow() < end) workers_->Poll(workers_->next_poll());
  EXPECT_THAT(Of<AllGone>(), SizeIs(1));
}

TEST_F(NodeWorkersTest, WithoutASupervisorTheCoreHearsSo_AndStopsEndAtOnce) {
  Run("true");
  kill(supervisor_pid_, SIGKILL);
  Wait<SupervisorLost>(1);
  workers_->Start(Assignment(1));
  workers_->Stop({1, absl::ZeroDuration()});
  EXPECT_THAT(Of<AllGone>(), SizeIs(1));
}

TEST_F(NodeWorkersTest, WhatCannotBePreparedHasEnded) {
  options_.workers.bind = "no such way";
  Run("true");
  workers_->Start(Assignment(1));
  EXPECT_THAT(Of<WorkerDied>(), SizeIs(2));
  EXPECT_EQ(Of<WorkerDied>()[1].exit.exec_step(), "prepare");
  workers_->Stop({1, absl::ZeroDuration()});
  EXPECT_THAT(Of<AllGone>(), SizeIs(1));
}

TEST_F(NodeWorkersTest, PollSeesWhatAWorkerTouches) {
  Run("touch $CADRE_PROGRESS_FILE; echo done; exec sleep 1000");
  workers_->Start(Assignment(1));
  Wait<WorkerRuns>(2);
  while (std::count(display_.standard_output.begin(), display_.standard_output.end(), '\n') < 2) {
    pollfd wait = {workers_->worker_supervisor().fd(), POLLIN, 0};
    ASSERT_EQ(poll(&wait, 1, kTestTimeoutMs), 1);
    const auto frames = workers_->worker_supervisor().Read();
    ASSERT_OK(frames);
    for (const supervisor::Frame& frame : *frames) workers_->OnFrame(frame);
  }
  workers_->Poll(MonoTime());
  EXPECT_THAT(Of<WorkerAlive>(), SizeIs(0)) << "it is not time";
  workers_->Poll(workers_->next_poll());
  EXPECT_THAT(Of<WorkerAlive>(), SizeIs(2));
}

TEST_F(NodeWorkersTest, AskedForACheckpoint_TheyFindAFile) {
  Run("exec sleep 1000");
  workers_->Start(Assignment(1));
  Wait<WorkerRuns>(2);
  workers_->RequestCheckpoint({1, SIGKILL});
  EXPECT_THAT(Wait<WorkerDied>(2), SizeIs(2));
  EXPECT_THAT(display_.own, HasSubstr("more nodes wait"));
}

}  // namespace
}  // namespace cadre::agent
