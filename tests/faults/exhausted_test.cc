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
#include "tests/testing/process_limit.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);
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
  const std::optional<int> status = run->Wait(kPatience);
  EXPECT_TRUE(status.has_value()) << "with " << limit << ": " << Said(*run);
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

TEST(DescriptorsTest, ALauncherWithAnyNumberOfThemRunsOrSaysThatTheyAreTooFew) {
  bool ran = false;
  for (int limit = 4; limit <= 64; limit += limit < 32 ? 2 : 8) {
    ran = RunsOrSays({"/usr/bin/prlimit", absl::StrCat("--nofile=", limit, ":", limit)},
                     kNoDescriptor, limit);
  }
  EXPECT_TRUE(ran);
}

// Sockets that agents and commands have are served, others wait: nothing is restarted for it.
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
    EXPECT_TRUE(asked->Wait(kPatience).has_value()) << Said(*asked);
    return asked;
  };
  // One that it has may have become free.
  EXPECT_THAT(status()->Wait(), testing::AnyOf(0, 69));
  job.ExpectAdditions();
  GiveDescriptors(pid);
  const auto afterwards = status();
  EXPECT_EQ(afterwards->Wait(), 0) << Said(*afterwards) << Said(server.process());
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

TEST_F(ProcessesTest, ALauncherWithAnyNumberOfThemRunsOrSaysThatTheyAreTooFew) {
  bool ran = false;
  for (int limit = 1; limit <= 24; ++limit) {
    limit_->Set(limit);
    ran = RunsOrSays(limit_->Inside(), kNoProcess, limit);
    EXPECT_TRUE(limit_->AwaitEmpty(kPatience)) << "with " << limit;
  }
  EXPECT_TRUE(ran);
}

TEST_F(ProcessesTest, AJobThatMayStartNoWorkerForAWhileRunsWhenItMay) {
  const auto run = StartInside({kCadre, "run", "--standalone", "--nproc-per-node=2",
                                "--max-restarts=1000", "--backoff=100ms..100ms", kProbe});
  const auto first = NextProbes(*run, 2, kPatience);
  ASSERT_EQ(first.size(), 2u) << Said(*run);
  limit_->Set(limit_->Count() - 2);
  kill(first[0].pid, SIGKILL);
  EXPECT_TRUE(run->WaitForLine(absl::StrCat("fork: ", kNoProcess), kPatience).has_value())
      << Said(*run);
  limit_->SetUnlimited();
  EXPECT_EQ(NextProbes(*run, 2, kPatience).size(), 2u) << Said(*run);
  run->Kill(SIGINT);
  EXPECT_EQ(run->Wait(kPatience), 130) << Said(*run);
}

TEST_F(ProcessesTest, AServerThatMayStartNoThreadServesAllTheSame) {
  MortalServer files;
  const auto server =
      StartInside({kCadre, "server", absl::StrCat("--port=", files.port()),
                   "--token-file=" + files.token_file(), "--state-dir=" + files.state_dir()});
  ASSERT_TRUE(server->WaitForLine("serving at", kPatience).has_value()) << Said(*server);
  limit_->Set(limit_->Count());
  StoreJob job(files.token_file());
  for (int node = 0; node < 2; ++node) job.StartNode(files.port(), "2");
  job.AwaitWorkers();
  job.ExpectAdditions();
  const auto status = StartCadre(
      {"status", "job", "--server=" + files.endpoint(), "--token-file=" + files.token_file()});
  EXPECT_EQ(status->Wait(kPatience), 0) << Said(*status) << Said(*server);
  job.Finish();
  server->Kill(SIGTERM);
  EXPECT_EQ(server->Wait(kPatience), 0) << Said(*server);
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
    ASSERT_TRUE(agent_->WaitForLine("is in the cluster", kPatience).has_value()) << Said(*agent_);
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
  bool CannotBegin(Process& job) { return job.WaitForLine("avoids n0: ", kPatience).has_value(); }
  void ExpectRuns(Process& job) { EXPECT_EQ(job.Wait(kPatience), 0) << Said(job) << Said(*agent_); }
  void ExpectAGoodEnd() {
    agent_->Kill(SIGTERM);
    EXPECT_EQ(agent_->Wait(kPatience), 0) << Said(*agent_);
  }

  MortalServer server_;
  const std::string folder_ = MakeTempDir("job");
  std::unique_ptr<Process> agent_;
};

// With the thread for users' files that its first launcher was started by, or without one.
TEST_F(AgentExhaustedTest, AnAgentThatMayStartNoLauncherStaysAndDoesWhenItMay) {
  for (const std::string round : {"1", "2"}) {
    const auto threads = std::distance(
        std::filesystem::directory_iterator(absl::StrCat("/proc/", agent_->pid(), "/task")), {});
    limit_->Set(static_cast<int>(threads));
    const auto job = Submit("job" + round);
    EXPECT_TRUE(CannotBegin(*job)) << Said(*job) << Said(*agent_);
    limit_->SetUnlimited();
    ExpectRuns(*job);
  }
  ExpectAGoodEnd();
}

// One that itself gets none, and one whose supervisor does not.
TEST_F(AgentExhaustedTest, AnAgentThatGetsNoDescriptorStaysAndStartsLaunchersWhenItDoes) {
  // By now it has the threads and files that it keeps.
  ExpectRuns(*Submit("first"));
  for (const pid_t pid : {agent_->pid(), ChildOf(agent_->pid())}) {
    ASSERT_NE(pid, 0);
    TakeDescriptors(pid);
    const auto meanwhile = Submit(absl::StrCat("meanwhile-", pid));
    // A descriptor that it has may have become free.
    if (CannotBegin(*meanwhile)) {
      EXPECT_THAT(meanwhile->standard_error(), HasSubstr(kNoDescriptor)) << Said(*agent_);
    }
    GiveDescriptors(pid);
    ExpectRuns(*meanwhile);
  }
  ExpectAGoodEnd();
}

// The kernel's order of those that it kills for want of memory.
TEST(OomOrderTest, WorkersGoBeforeWhatBringsThemBack) {
  for (const int own : {0, 300}) {
    const auto run = StartProgram(
        "/usr/bin/choom", {"-n", absl::StrCat(own), "--", kCadre, "run", "--standalone", kProbe});
    const auto probes = NextProbes(*run, 1, kPatience);
    if (absl::StrContains(run->standard_error(), "failed to set score")) {
      GTEST_SKIP() << "this process has a higher one, and may not lower it";
    }
    ASSERT_EQ(probes.size(), 1u) << Said(*run);
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
    EXPECT_EQ(run->Wait(kPatience), 130) << Said(*run);
  }
}

}  // namespace
}  // namespace cadre
