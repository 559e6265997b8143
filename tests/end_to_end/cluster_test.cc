// A cluster as users have it: one server, three agents, jobs that are submitted.
#include <signal.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/end_to_end/served_cluster.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using ClusterTest = ServedCluster;

TEST_F(ClusterTest, AJobIsSubmittedFollowedAndReadByRank) {
  const std::string spec =
      WriteJob("talk", "2", "", "echo hello from $RANK; echo oops >&2; [ $RANK != 3 ] || exit 7");
  const auto follow = Cadre({"submit", spec, "--follow"});
  EXPECT_EQ(follow->Wait(kTimeout), 7) << OutputOf(*follow);
  EXPECT_THAT(follow->standard_output(), HasSubstr("submitted talk as job 1"));
  EXPECT_THAT(follow->standard_output(), HasSubstr("[3]: hello from 3\n"));
  EXPECT_THAT(follow->standard_error(), HasSubstr("[3]: oops\n"));
  EXPECT_THAT(follow->standard_error(), HasSubstr("job talk failed"));
  EXPECT_EQ(Output({"logs", "talk", "--rank=3"}), "hello from 3\n");
  EXPECT_THAT(Output({"timeline", "talk"}), HasSubstr("1"));
  // It can be submitted again once its nodes are free.
  const absl::Time end = absl::Now() + kTimeout;
  for (;;) {
    const auto again = Cadre({"submit", spec, "--follow"});
    const std::optional<int> status = again->Wait(kTimeout);
    if (status == 7) break;
    ASSERT_THAT(again->standard_error(), HasSubstr("still leaving"));
    ASSERT_LT(absl::Now(), end);
  }
  const auto missing = Cadre({"logs", "talk", "--rank=9"});
  EXPECT_NE(missing->Wait(kTimeout), 0);
  EXPECT_THAT(missing->standard_error(), HasSubstr("has no rank 9"));
}

TEST_F(ClusterTest, LogsAreFollowedWhileTheJobRuns) {
  Submit("live", "1");
  const auto follow = Cadre({"logs", "live", "--rank=1", "--follow"});
  EXPECT_TRUE(follow->WaitForLine("rank=1 of 2", kTimeout).has_value()) << OutputOf(*follow);
  Finish("live");
  EXPECT_EQ(follow->Wait(kTimeout), 0) << OutputOf(*follow);
}

// Fault (display): A worker writes control sequences for a terminal -> `cadre logs` shows them on a
// terminal as text
TEST_F(ClusterTest, WhatAWorkerWritesDoesNotCommandTheTerminalOfWhoReadsIt) {
  const std::string spec = WriteJob("noisy", "1", "", "printf \"\\\\033]0;mine\\\\007\\\\n\"");
  const auto follow = Cadre({"submit", spec, "--follow"});
  EXPECT_EQ(follow->Wait(kTimeout), 0) << OutputOf(*follow);
  EXPECT_EQ(Output({"logs", "noisy", "--rank=0"}), "\x1b]0;mine\x07\n");
  const auto on_terminal = [this](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {Server(), "--token-file=" + Token()});
    const auto command = StartCadre(arguments, {}, /*terminal=*/true);
    EXPECT_EQ(command->Wait(kTimeout), 0) << OutputOf(*command);
    return command->standard_output();
  };
  EXPECT_THAT(on_terminal({"logs", "noisy", "--rank=0"}), HasSubstr("\\x1b]0;mine\\x07"));
  EXPECT_THAT(on_terminal({"logs", "noisy", "--rank=0", "--raw"}), HasSubstr("\x1b]0;mine\x07"));
}

TEST_F(ClusterTest, LogsOfEachLifeOfAJobThatCrashes_AndWhatCannotBeRead) {
  // Rank 0 dies of itself, once rank 1 has written.
  const std::string up = directory_ + "/up.$CADRE_GENERATION";
  const std::string spec = WriteJob(
      "loop", "1", "restart: {max: 2}\n",
      absl::StrCat("echo life $CADRE_GENERATION; [ $RANK = 0 ] || { touch ", up,
                   "; exec sleep 1000; }; until [ -e ", up, " ]; do sleep 0.02; done; exit 1"));
  const auto follow = Cadre({"submit", spec, "--follow"});
  EXPECT_EQ(follow->Wait(kTimeout), 1) << OutputOf(*follow);
  EXPECT_EQ(Output({"logs", "loop", "--rank=0"}), "life 3\n");
  EXPECT_EQ(Output({"logs", "loop", "--rank=0", "--generation=previous"}), "life 2\n");
  EXPECT_EQ(Output({"logs", "loop", "--rank=1", "--generation=1"}), "life 1\n");
  const auto none = Cadre({"logs", "loop", "--generation=4"});
  EXPECT_EQ(none->Wait(kTimeout), 1);
  EXPECT_THAT(none->standard_error(), HasSubstr("has no generation 4; it has 1 to 3"));
  // In the place of its output there is something that is no file.
  const std::string file = directory_ + "/logs/loop/generation_3/rank_0/stdout.log";
  std::filesystem::remove(file);
  std::filesystem::create_directory(file);
  const auto refused = Cadre({"logs", "loop"});
  EXPECT_EQ(refused->Wait(kTimeout), 1) << OutputOf(*refused);
  EXPECT_THAT(refused->standard_output(), HasSubstr("[1]: life 3\n"));
  EXPECT_THAT(refused->standard_error(),
              HasSubstr("cannot show the standard output of rank 0 in generation 3"));
}

// Fault (queue): A machine has no cgroup v2, no controllers there, or other processes in the
// agent's cgroup -> Jobs run; `cadre doctor` and the agent's log say which limits are not enforced
TEST_F(ClusterTest, TheDoctorSaysWhatJobsAreHeldTo_AndAWorkerOpensNoGpuThatIsNotItsOwn) {
  const auto doctor = Cadre({"doctor", "--output=json"}, /*client=*/false);
  ASSERT_TRUE(doctor->Wait(kTimeout).has_value());
  const auto rows = nlohmann::json::parse(doctor->standard_output(), nullptr, false);
  ASSERT_TRUE(rows.is_array()) << OutputOf(*doctor);
  std::map<std::string, nlohmann::json> found;
  for (const nlohmann::json& row : rows) found[row["what"]] = row;
  for (const char* what : {"memory of jobs", "processes of jobs", "GPUs of jobs"}) {
    ASSERT_EQ(found.count(what), 1u) << OutputOf(*doctor);
    EXPECT_THAT(found[what]["text"].get<std::string>(),
                HasSubstr(found[what]["verdict"] == "ok" ? "an agent that runs as root"
                                                         : "cannot be limited: "));
  }
  if (geteuid() != 0) GTEST_SKIP() << "only agents of root contain their jobs";
  if (found["GPUs of jobs"]["verdict"] != "ok") GTEST_SKIP() << found["GPUs of jobs"]["text"];
  // Of NVIDIA's first GPU, whether this machine has one or not: there is none to give.
  const std::string gpu = directory_ + "/gpu";
  ASSERT_EQ(mknod(gpu.c_str(), S_IFCHR | 0666, makedev(195, 0)), 0);
  const std::string spec = WriteJob("opens", "1", "", absl::StrCat("(: <", gpu, ") 2>&1; exit 0"));
  const auto follow = Cadre({"submit", spec, "--follow"});
  EXPECT_EQ(follow->Wait(kTimeout), 0) << OutputOf(*follow);
  EXPECT_THAT(Output({"logs", "opens", "--rank=1"}), HasSubstr("Operation not permitted"));
}

TEST_F(ClusterTest, QueuedAndRunningJobsAreCancelled) {
  Submit("runs", "3");
  AwaitRunning("runs", 3);
  Submit("waits", "2");
  EXPECT_THAT(WhyOf("waits"), HasSubstr("2 nodes with 2 CPUs free: 0 are, and it is the next"));
  EXPECT_THAT(Output({"status"}), HasSubstr("waits"));
  Output({"cancel", "waits"});
  AwaitPhase("waits", "CANCELLED_PHASE");
  Output({"cancel", "runs"});
  AwaitPhase("runs", "CANCELLED_PHASE");
  // And its nodes are free again.
  Submit("next", "3");
  AwaitRunning("next", 3);
}

// Fault (queue): A user watches or follows a job, and a newer one gets its name -> The command goes
// on with the older one, to its end
TEST_F(ClusterTest, WhoWatchesAJobDoesNotSeeANewerOneOfItsName) {
  Submit("job", "1");
  AwaitRunning("job", 1);
  const auto watch = Cadre({"status", "job", "--watch"});
  const auto follow = Cadre({"logs", "job", "--follow"});
  EXPECT_TRUE(watch->WaitForLine("generation 1 running", kTimeout).has_value()) << OutputOf(*watch);
  EXPECT_TRUE(follow->WaitForLine("rank=1 of 2", kTimeout).has_value()) << OutputOf(*follow);
  EXPECT_THAT(Output({"submit", WriteJob("job", "1", "", "exit 3")}),
              HasSubstr("submitted job as job 2 (job-2)"));
  AwaitPhase("2", "FAILED");
  EXPECT_THAT(Output({"status", "--me", "--state=failed"}),
              AllOf(HasSubstr("failed (3)"), Not(HasSubstr("running"))));
  EXPECT_THAT(Output({"status", "--node=n0,n1,n2"}),
              AllOf(HasSubstr("running"), Not(HasSubstr("failed"))));
  Finish("job");
  EXPECT_EQ(watch->Wait(kTimeout), 0) << OutputOf(*watch);
  EXPECT_EQ(follow->Wait(kTimeout), 0) << OutputOf(*follow);
}

TEST_F(ClusterTest, ADrainedNodeTakesNothingNewAndPriorityComesBeforeAge) {
  EXPECT_THAT(Output({"drain", "n2", "--reason=fan"}), HasSubstr("drained: fan"));
  Submit("wide", "2");
  AwaitRunning("wide", 2);
  Submit("low", "1");
  Submit("high", "1", "priority: 5\n");
  EXPECT_EQ(Status("low")["phase"], "QUEUED");
  EXPECT_EQ(Status("high")["phase"], "QUEUED");
  const std::string nodes = Output({"nodes"});
  EXPECT_THAT(nodes, HasSubstr("wide"));
  EXPECT_THAT(nodes, Not(HasSubstr("high")));
  Output({"undrain", "n2"});
  AwaitRunning("high", 1);
  EXPECT_EQ(Status("low")["phase"], "QUEUED");
  Output({"drain", "n0"});
  Finish("high");
  AwaitPhase("high", "SUCCEEDED");
  AwaitRunning("low", 1);
  // Of what a drained node runs nothing is taken.
  EXPECT_EQ(Status("wide")["phase"], "RUNNING");
  const auto unknown = Cadre({"drain", "n7"});
  EXPECT_NE(unknown->Wait(kTimeout), 0);
  EXPECT_THAT(unknown->standard_error(), HasSubstr("no node n7"));
}

TEST_F(ClusterTest, AnElasticJobIsShrunkAndGrowsAgain) {
  Submit("elastic", "1..3", "elastic: {scale_up: immediately}\n");
  AwaitRunning("elastic", 3);
  Submit("fixed", "2");
  AwaitRunning("fixed", 2);
  AwaitRunning("elastic", 1);
  Finish("fixed");
  AwaitPhase("fixed", "SUCCEEDED");
  AwaitRunning("elastic", 3);
  EXPECT_EQ(Status("elastic").value("restarts", 0), 0);
  Finish("elastic");
  AwaitPhase("elastic", "SUCCEEDED");
}

// Fault (queue): The server is killed while jobs wait and run in a cluster -> The queue, placements
// and drains are still there, and running jobs keep their generation
TEST_F(ClusterTest, KilledServer_TheQueueIsStillThereAndRunningJobsGoOn) {
  Submit("runs", "2");
  AwaitRunning("runs", 2);
  Submit("waits", "3");
  EXPECT_EQ(Status("waits")["phase"], "QUEUED");
  server_->Kill(SIGKILL);
  EXPECT_EQ(server_->Wait(kTimeout), 128 + SIGKILL);
  StartServer();
  for (const auto& agent : agents_) AwaitIn(*agent);
  EXPECT_EQ(Status("waits")["phase"], "QUEUED");
  AwaitRunning("runs", 2);
  EXPECT_EQ(Status("runs")["generation"], "1") << Status("runs").dump(1);
  Finish("runs");
  AwaitPhase("runs", "SUCCEEDED");
  AwaitRunning("waits", 3);
}

// Fault (queue): A cluster's agent is killed -> Its workers end, and the job runs in its next
// generation when the agent is back; the agent's next start removes its files in `/tmp`
TEST_F(ClusterTest, KilledAgent_ItsWorkersGoWithItAndTheJobComesBack) {
  Submit("job", "3", "restart: {max: 3}\n");
  AwaitRunning("job", 3);
  agents_.back()->Kill(SIGKILL);
  EXPECT_EQ(agents_.back()->Wait(kTimeout), 128 + SIGKILL);
  agents_.pop_back();
  Await("job", "in its next generation",
        [](const nlohmann::json& status) { return status["phase"] == "GATHERING"; });
  StartAgent(2);
  AwaitIn(*agents_.back());
  AwaitRunning("job", 3);
  EXPECT_EQ(Status("job")["generation"], "2");
}

// Fault (queue): The agent of a submitted job's node is told to end -> Another node takes its
// place, and no restart is counted
TEST_F(ClusterTest, AnAgentThatIsToldToEnd_ItsJobsGoOnElsewhereAndItTakesNothingNew) {
  // Its workers take their time to stop.
  const std::string spec =
      WriteJob("job", "1", "",
               absl::StrCat("trap : TERM; until [ -e ", Done("job"), " ]; do sleep 0.1; done"));
  EXPECT_THAT(Output({"submit", spec}), HasSubstr("submitted job"));
  AwaitRunning("job", 1);
  const std::string node = Status("job")["nodes"][0]["name"];
  const auto agent = agents_.begin() + (node.back() - '0');
  (*agent)->Kill(SIGTERM);
  ASSERT_TRUE((*agent)->WaitForLine("ending 1 launchers", kTimeout).has_value())
      << OutputOf(**agent);
  Submit("next", "1");
  AwaitRunning("next", 1);
  EXPECT_EQ((*agent)->Wait(kTimeout), 0) << OutputOf(**agent);
  agents_.erase(agent);
  AwaitRunning("job", 1);
  EXPECT_NE(Status("job")["nodes"][0]["name"], node);
  EXPECT_EQ(Status("job").value("restarts", 0), 0);
  Finish("job");
  AwaitPhase("job", "SUCCEEDED");
}

// The directory that an agent keeps its parts in.
std::string PartsDirectoryOf(const Process& agent) {
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", agent.pid(), "/fd"))) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (absl::StrContains(target, "/cadre-agent-")) return target;
  }
  return "";
}

TEST_F(ClusterTest, ABadNodeIsAvoidedAndTheJobRunsOnAnother) {
  // The first part's place is taken on whichever node gets it.
  std::vector<std::string> taken;
  for (const auto& agent : agents_) {
    taken.push_back(PartsDirectoryOf(*agent) + "/part-1");
    ASSERT_TRUE(std::filesystem::create_directory(taken.back())) << taken.back();
  }
  Submit("job", "1");
  AwaitRunning("job", 1);
  const nlohmann::json status = Status("job");
  ASSERT_EQ(status["avoided"].size(), 1u) << status.dump(1);
  const std::string bad = status["avoided"][0]["node"];
  EXPECT_NE(status["nodes"][0]["name"], bad);
  EXPECT_THAT(WhyOf("job"), HasSubstr(absl::StrCat("avoids ", bad, ": cannot write ")));
  EXPECT_THAT(Output({"status", "job"}), HasSubstr("part-1"));
  Finish("job");
  AwaitPhase("job", "SUCCEEDED");
}

TEST_F(ClusterTest, AJobThatNoNodeCanBeginFailsAndSaysWhy) {
  const std::string path = directory_ + "/lost.yaml";
  std::ofstream(path) << "name: lost\nnodes: 1\nworkers_per_node: 2\nworking_dir: " << directory_
                      << "/nowhere\ncommand: [/bin/true]\n";
  const auto follow = Cadre({"submit", path, "--follow"});
  EXPECT_EQ(follow->Wait(kTimeout), 75) << OutputOf(*follow);
  const std::string why = WhyOf("lost");
  EXPECT_THAT(why, HasSubstr("no node is left for it"));
  // However long the path is.
  EXPECT_THAT(why, HasSubstr("n2 (working_dir: No such file or directory on this node: "));
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/nowhere"));
}

TEST_F(ClusterTest, InterruptedFollow_TheJobGoesOnAndHowToReachItIsSaid) {
  const auto follow = Cadre({"submit", WriteJob("job", "1"), "--follow"});
  ASSERT_TRUE(follow->WaitForLine("rank=1 of 2", kTimeout).has_value()) << OutputOf(*follow);
  follow->Kill(SIGINT);
  EXPECT_EQ(follow->Wait(kTimeout), 130) << OutputOf(*follow);
  EXPECT_THAT(
      follow->standard_error(),
      HasSubstr("cadre: job job continues; 'cadre logs job --follow' shows it again, 'cadre "
                "cancel job' ends it\n"));
  AwaitRunning("job", 1);
  Finish("job");
  AwaitPhase("job", "SUCCEEDED");
}

TEST_F(ClusterTest, MemoryThatAJobHasIsNotGivenToAnother) {
  for (const char* name : {"n0", "n1", "n2"}) Output({"drain", name});
  agents_.push_back(Cadre({"agent", "--node-name=large", "--cpus=8", "--gpus=0", "--memory=4GiB",
                           absl::StrCat("--user=", getpwuid(geteuid())->pw_name)}));
  AwaitIn(*agents_.back());
  // Two workers and a launcher.
  Submit("first", "1", "resources: {memory_per_worker: 1GiB}\n");
  AwaitRunning("first", 1);
  Submit("second", "1", "resources: {memory_per_worker: 1GiB}\n");
  EXPECT_THAT(WhyOf("second"), HasSubstr("1 node with 2 CPUs and 3 GiB of memory free: 0 are "
                                         "(another has 6 CPUs and 1 GiB of memory)"));
  EXPECT_THAT(Output({"nodes"}), testing::ContainsRegex("large +up +2/8 +0/0 +3/4 GiB"));
  Finish("first");
  AwaitRunning("second", 1);
  Finish("second");
  AwaitPhase("second", "SUCCEEDED");
}

TEST_F(ClusterTest, AnAgentsMemoryIsASizeThatAMachineCanHave) {
  for (const char* size : {"0B", "64", "65TiB"}) {
    const auto agent = Cadre({"agent", absl::StrCat("--memory=", size)});
    EXPECT_EQ(agent->Wait(kTimeout), 64) << OutputOf(*agent);
    EXPECT_THAT(agent->standard_error(), HasSubstr("--memory: "));
  }
}

TEST_F(ClusterTest, ANodesNameFollowsOneRule) {
  for (const std::string name : {"", "a b", "N1"}) {
    const auto agent = Cadre({"agent", "--node-name=" + name, "--cpus=1", "--gpus=0"});
    EXPECT_EQ(agent->Wait(kTimeout), 69) << OutputOf(*agent);
    EXPECT_THAT(agent->standard_error(), HasSubstr("node name"));
  }
}

TEST_F(ClusterTest, WhatCannotRunIsSaid) {
  const std::string spec = WriteJob("bad", "1", "resources: {gpus_per_worker: 1}\n");
  EXPECT_THAT(Output({"submit", spec}),
              HasSubstr("it waits for 1 node with 2 CPUs and 2 GPUs: 0 of 3 can take it; 3 are too "
                        "small (the largest has 2 CPUs)"));
  Output({"cancel", "bad"});
  // Where nothing listens.
  const int nobody = FreePort();
  const auto status = Cadre(
      {"status", absl::StrCat("--server=127.0.0.1:", nobody), "--token-file=" + Token()}, false);
  EXPECT_EQ(status->Wait(kTimeout), 69);
  EXPECT_EQ(status->standard_error(),
            absl::StrCat("cadre: cannot reach 127.0.0.1:", nobody,
                         ": connection refused; is 'cadre server' running there? Name another "
                         "server with --server. A job of 'cadre run --standalone' has no server: "
                         "run 'cadre status', 'why' or 'logs' on its machine\n"));
  const auto no_spec = Cadre({"submit", Token()});
  EXPECT_EQ(no_spec->Wait(kTimeout), 65) << OutputOf(*no_spec);
  const auto follow =
      Cadre({"submit", WriteJob("absent", "1", "", "exec /no/such/program"), "--follow"});
  EXPECT_EQ(follow->Wait(kTimeout), 127) << OutputOf(*follow);
}

}  // namespace
}  // namespace cadre
