// A launcher, a server and a cluster's agent that get no more descriptors, or may start no more
// processes and threads: what each can do without goes on, what it cannot is said, and it goes on
// when there is room again.
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "tests/faults/mortal_server.h"
#include "tests/faults/store_job.h"
#include "tests/testing/cgroups.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr char kNoDescriptor[] = "Too many open files";
constexpr char kNoProcess[] = "Resource temporarily unavailable";

// `cadre run --standalone`, which ends with 0 or says what it lacked; whether it was 0.
bool RunsOrSays(const std::vector<std::string>& prefix, const std::string& lack, int limit) {
  std::vector<std::string> words = prefix;
  for (const char* word :
       {kCadre, "run", "--standalone", "--nproc-per-node=2", "--", "/bin/true"}) {
    words.push_back(word);
  }
  const auto run = StartProgram(words[0], std::vector<std::string>(words.begin() + 1, words.end()));
  const std::optional<int> status = run->Wait(kTimeout);
  EXPECT_TRUE(status.has_value()) << "with " << limit << ": " << OutputOf(*run);
  if (status == 0) return true;
  EXPECT_THAT(run->standard_error(), HasSubstr(lack)) << "with " << limit;
  return false;
}

// Gives a process no descriptor beyond those that it has.
void TakeDescriptors(pid_t pid) {
  rlim_t next = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"))) {
    uint64_t fd = 0;
    if (absl::SimpleAtoi(entry.path().filename().string(), &fd)) next = std::max(next, fd + 1);
  }
  rlimit limit = {};
  ASSERT_EQ(prlimit(pid, RLIMIT_NOFILE, nullptr, &limit), 0);
  limit.rlim_cur = next;
  ASSERT_EQ(prlimit(pid, RLIMIT_NOFILE, &limit, nullptr), 0);
}
void GiveDescriptors(pid_t pid) {
  rlimit limit = {};
  ASSERT_EQ(prlimit(pid, RLIMIT_NOFILE, nullptr, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(prlimit(pid, RLIMIT_NOFILE, &limit, nullptr), 0);
}

// Fault (input): A launcher may open any number of files from 4 to 64 -> It runs, or ends in time
// and says what it lacked (below 32 at its start, with 69); nothing is left behind
TEST(DescriptorsTest, ALauncherWithAnyNumberOfThemRunsOrSaysThatTheyAreTooFew) {
  bool ran = false;
  for (int limit = 4; limit <= 64; limit += limit < 32 ? 2 : 8) {
    ran = RunsOrSays({"/usr/bin/prlimit", absl::StrCat("--nofile=", limit, ":", limit)},
                     kNoDescriptor, limit);
  }
  EXPECT_TRUE(ran);
}

// Sockets that agents and commands have are served, others wait: nothing is restarted for it.
//
// Fault (input): A server gets no more descriptors -> Its nodes and their workers go on; new
// clients are refused with 69 until a descriptor is free
TEST(DescriptorsTest, AServerThatGetsNoMoreServesWhoIsThereAndOthersLater) {
  MortalServer server;
  ASSERT_TRUE(server.Start());
  StoreJob job(server.token_file());
  for (int node = 0; node < 2; ++node) job.StartNode(server.port(), "2");
  job.AwaitWorkers();
  const pid_t pid = server.process().pid();
  TakeDescriptors(pid);
  const auto status = [&] {
    auto asked = StartCadre(
        {"status", "job", "--server=" + server.endpoint(), "--token-file=" + server.token_file()});
    EXPECT_TRUE(asked->Wait(kTimeout).has_value()) << OutputOf(*asked);
    return asked;
  };
  // One that it has may have become free.
  EXPECT_THAT(status()->Wait(), testing::AnyOf(0, 69));
  job.ExpectAdditions();
  GiveDescriptors(pid);
  const auto afterwards = status();
  EXPECT_EQ(afterwards->Wait(), 0) << OutputOf(*afterwards) << OutputOf(server.process());
  job.ExpectUndisturbed();
  job.Finish();
}

// 0: it has none.
pid_t ChildOf(pid_t pid) {
  return atoi(ReadFileOrEmpty(absl::StrCat("/proc/", pid, "/task/", pid, "/children")).c_str());
}

class ProcessesTest : public testing::Test {
 protected:
  void SetUp() override {
    auto limit = ProcessLimit::Make();
    if (absl::IsFailedPrecondition(limit.status())) GTEST_SKIP() << limit.status().message();
    ASSERT_OK(limit);
    limit_ = *std::move(limit);
  }
  // `command` in the group.
  std::unique_ptr<Process> StartInside(const std::vector<std::string>& command) {
    std::vector<std::string> words = limit_->Inside();
    words.insert(words.end(), command.begin(), command.end());
    return StartProgram(words[0], std::vector<std::string>(words.begin() + 1, words.end()));
  }

  std::unique_ptr<ProcessLimit> limit_;
};

// Fault (input): A launcher may start any number of processes and threads from 1 to 24 (`pids.max`)
// -> It runs, or ends in time and says what it lacked; nothing is left behind
TEST_F(ProcessesTest, ALauncherWithAnyNumberOfThemRunsOrSaysThatTheyAreTooFew) {
  bool ran = false;
  for (int limit = 1; limit <= 24; ++limit) {
    limit_->Set(limit);
    ran = RunsOrSays(limit_->Inside(), kNoProcess, limit);
    EXPECT_TRUE(limit_->AwaitEmpty(kTimeout)) << "with " << limit;
  }
  EXPECT_TRUE(ran);
}

// Fault (input): A node can start no process, or open no file, for a worker at that moment -> That
// is a failure of the worker: it is retried within the budget, and the job runs when there is room
TEST_F(ProcessesTest, AJobThatMayStartNoWorkerForAWhileRunsWhenItMay) {
  const auto run = StartInside({kCadre, "run", "--standalone", "--nproc-per-node=2",
                                "--max-restarts=1000", "--backoff=100ms..100ms", kProbe});
  const auto first = NextProbes(*run, 2, kTimeout);
  ASSERT_EQ(first.size(), 2u) << OutputOf(*run);
  limit_->Set(limit_->Count() - 2);
  kill(first[0].pid, SIGKILL);
  EXPECT_TRUE(run->WaitForLine(absl::StrCat("fork: ", kNoProcess), kTimeout).has_value())
      << OutputOf(*run);
  limit_->SetUnlimited();
  EXPECT_EQ(NextProbes(*run, 2, kTimeout).size(), 2u) << OutputOf(*run);
  run->Kill(SIGINT);
  EXPECT_EQ(run->Wait(kTimeout), 130) << OutputOf(*run);
}

// Fault (input): A server may start no more threads -> It serves its nodes and new clients without
// another thread
TEST_F(ProcessesTest, AServerThatMayStartNoThreadServesAllTheSame) {
  MortalServer files;
  const auto server =
      StartInside({kCadre, "server", absl::StrCat("--port=", files.port()),
                   "--token-file=" + files.token_file(), "--state-dir=" + files.state_dir()});
  ASSERT_TRUE(server->WaitForLine("serving at", kTimeout).has_value()) << OutputOf(*server);
  limit_->Set(limit_->Count());
  StoreJob job(files.token_file());
  for (int node = 0; node < 2; ++node) job.StartNode(files.port(), "2");
  job.AwaitWorkers();
  job.ExpectAdditions();
  const auto status = StartCadre(
      {"status", "job", "--server=" + files.endpoint(), "--token-file=" + files.token_file()});
  EXPECT_EQ(status->Wait(kTimeout), 0) << OutputOf(*status) << OutputOf(*server);
  job.Finish();
  server->Kill(SIGTERM);
  EXPECT_EQ(server->Wait(kTimeout), 0) << OutputOf(*server);
}

// An agent of a cluster, on which jobs are to run that end at once.
class AgentExhaustedTest : public ProcessesTest {
 protected:
  void SetUp() override {
    ProcessesTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    ASSERT_TRUE(server_.Start());
    agent_ = StartInside(
        Cadre({kCadre, "agent", "--node-name=n0", "--cpus=2", "--gpus=0", "--user=root"}));
    ASSERT_TRUE(agent_->WaitForLine("is in the cluster", kTimeout).has_value())
        << OutputOf(*agent_);
  }
  std::vector<std::string> Cadre(std::vector<std::string> words) const {
    words.insert(words.end(),
                 {"--server=" + server_.endpoint(), "--token-file=" + server_.token_file()});
    return words;
  }
  // What follows it.
  std::unique_ptr<Process> Submit(const std::string& name) {
    const std::string spec = absl::StrCat(folder_, "/", name, ".yaml");
    std::ofstream(spec) << "name: " << name << "\nnodes: 1\nworking_dir: " << folder_
                        << "\ncommand: [/bin/true]\n";
    return StartCadre(Cadre({"submit", spec, "--follow"}));
  }
  // False: it has begun.
  bool CannotBegin(Process& job) { return job.WaitForLine("avoids n0: ", kTimeout).has_value(); }
  void ExpectRuns(Process& job) {
    EXPECT_EQ(job.Wait(kTimeout), 0) << OutputOf(job) << OutputOf(*agent_);
  }
  void ExpectAGoodEnd() {
    agent_->Kill(SIGTERM);
    EXPECT_EQ(agent_->Wait(kTimeout), 0) << OutputOf(*agent_);
  }

  MortalServer server_;
  const std::string folder_ = MakeTempDir("job");
  std::unique_ptr<Process> agent_;
};

// With the thread for users' files that its first launcher was started by, or without one.
//
// Fault (input): A cluster's agent may start no more processes or threads -> It keeps running,
// retries what it cannot start, and still ends when it is told to
TEST_F(AgentExhaustedTest, AnAgentThatMayStartNoLauncherStaysAndDoesWhenItMay) {
  for (const std::string round : {"1", "2"}) {
    const auto threads = std::distance(
        std::filesystem::directory_iterator(absl::StrCat("/proc/", agent_->pid(), "/task")), {});
    limit_->Set(static_cast<int>(threads));
    const auto job = Submit("job" + round);
    EXPECT_TRUE(CannotBegin(*job)) << OutputOf(*job) << OutputOf(*agent_);
    limit_->SetUnlimited();
    ExpectRuns(*job);
  }
  ExpectAGoodEnd();
}

// One that itself gets none, and one whose supervisor does not.
//
// Fault (input): A cluster's agent or its supervisor gets no more descriptors -> It keeps running
// and starts launchers when there is room
TEST_F(AgentExhaustedTest, AnAgentThatGetsNoDescriptorStaysAndStartsLaunchersWhenItDoes) {
  // By now it has the threads and files that it keeps.
  ExpectRuns(*Submit("first"));
  for (const pid_t pid : {agent_->pid(), ChildOf(agent_->pid())}) {
    ASSERT_NE(pid, 0);
    TakeDescriptors(pid);
    const auto meanwhile = Submit(absl::StrCat("meanwhile-", pid));
    // A descriptor that it has may have become free.
    if (CannotBegin(*meanwhile)) {
      EXPECT_THAT(meanwhile->standard_error(), HasSubstr(kNoDescriptor)) << OutputOf(*agent_);
    }
    GiveDescriptors(pid);
    ExpectRuns(*meanwhile);
  }
  ExpectAGoodEnd();
}

// The kernel's order of those that it kills for want of memory.
//
// Fault (worker): The machine runs out of memory -> The kernel kills a worker before its supervisor
// and agent: a worker's `oom_score_adj` is 100 above its supervisor's, and at least 100
TEST(OomOrderTest, WorkersGoBeforeWhatBringsThemBack) {
  for (const int own : {0, 300}) {
    const auto run = StartProgram(
        "/usr/bin/choom", {"-n", absl::StrCat(own), "--", kCadre, "run", "--standalone", kProbe});
    const auto probes = NextProbes(*run, 1, kTimeout);
    if (absl::StrContains(run->standard_error(), "failed to set score")) {
      GTEST_SKIP() << "this process has a higher one, and may not lower it";
    }
    ASSERT_EQ(probes.size(), 1u) << OutputOf(*run);
    const auto score = [](pid_t pid) {
      int value = 0;
      EXPECT_TRUE(
          absl::SimpleAtoi(ReadFileOrEmpty(absl::StrCat("/proc/", pid, "/oom_score_adj")), &value));
      return value;
    };
    EXPECT_EQ(score(run->pid()), own);
    EXPECT_EQ(score(ParentOf(probes[0].pid)), own) << "its supervisor";
    EXPECT_EQ(score(probes[0].pid), own + 100);
    run->Kill(SIGINT);
    EXPECT_EQ(run->Wait(kTimeout), 130) << OutputOf(*run);
  }
}

}  // namespace
}  // namespace cadre
