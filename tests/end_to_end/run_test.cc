// `cadre run` on one machine: exit statuses, output, restarts, several nodes.
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

TEST(RunTest, Standalone_WorkersSucceed_StatusZeroAndPrefixedLines) {
  auto run = StartStandalone(
      {"--nproc-per-node", "2", "--", "/bin/sh", "-c", "echo hello $RANK of $WORLD_SIZE"});
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(),
              AllOf(HasSubstr(":0] hello 0 of 2"), HasSubstr(":1] hello 1 of 2")));
}

TEST(RunTest, AFilterForWorkersThatAreNotHere_IsSaid) {
  auto run = StartStandalone({"--nproc-per-node", "2", "--local-ranks-filter", "1,2", "--",
                              "/bin/sh", "-c", "echo hello $RANK"});
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), AllOf(HasSubstr("hello 1"), Not(HasSubstr("hello 0"))));
  EXPECT_THAT(run->standard_error(),
              AllOf(HasSubstr("no local rank 2 here; this node runs 2 workers"),
                    Not(HasSubstr("no local rank 1 "))));
}

TEST(RunTest, WorkerExitsWithACode_ThatIsTheStatus) {
  auto run = StartStandalone({"--nproc-per-node", "2", "--", kProbe, "--rank", "1", "--exit", "7"});
  EXPECT_EQ(run->Wait(), 7) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(), AllOf(HasSubstr("rank 1"), HasSubstr("7")));
}

// Fault (worker): A worker dies of a signal and no restart is left -> `cadre run` exits with 128
// plus the signal's number, and the verdict names the signal
TEST(RunTest, WorkerDiesBySignal_StatusIs128PlusSignalAndTheVerdictNamesIt) {
  const std::string logs = MakeTempDir("logs");
  auto run = StartStandalone({"--nproc-per-node", "3", "--log-dir", logs, "--job-name", "sig", "--",
                              kProbe, "--rank", "2", "--kill", "11"});
  EXPECT_EQ(run->Wait(), 128 + SIGSEGV) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(), AllOf(HasSubstr("rank 2"), HasSubstr("SIGSEGV")));
  EXPECT_THAT(ReadFileOrEmpty(logs + "/sig/verdict.json"),
              AllOf(HasSubstr("\"rank\""), HasSubstr("\"node\""), HasSubstr("SIGSEGV")));
  EXPECT_THAT(ReadFileOrEmpty(logs + "/sig/timeline.json"), HasSubstr("\"formed_us\""));
  EXPECT_THAT(ReadFileOrEmpty(logs + "/sig/generation_1/rank_2/stdout.log"),
              HasSubstr("probe rank=2"));
}

// As systemd does with /run/user/UID at the end of the user's last session.
//
// Fault (node): The launcher's directory is removed, as systemd does with `/run/user/UID` after the
// last logout -> The launcher says so, running workers keep their connections, and the next
// generation has the directory again
TEST(RunTest, TheLaunchersDirectoryIsRemoved_ARestartHasItAgain) {
  auto run = StartStandalone(
      {"--nproc-per-node", "1", "--max-restarts", "1", "--", "/bin/sh", "-c",
       "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then rm -r $(dirname $CADRE_AGENT); exit 1; fi; "
       "test -S $CADRE_AGENT && test -f $CADRE_TOKEN_FILE && test -d $CADRE_CHECKPOINT_MEMORY/."});
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(), HasSubstr("were removed; the agent has made them again"));
}

TEST(RunTest, TwoRunsOfOneName_EachKeepsItsOutputAndTheNewestIsWhereTheJobIs) {
  const std::string logs = MakeTempDir("logs");
  const auto run_once = [&](const std::string& restarts, const std::string& script) {
    auto run = StartStandalone({"--nproc-per-node", "1", "--log-dir", logs, "--job-name", "again",
                                "--max-restarts", restarts, "--", "/bin/sh", "-c", script});
    return run->Wait();
  };
  const auto output = [&](const std::string& directory, int generation) {
    return ReadFileOrEmpty(
        absl::StrCat(directory, "/generation_", generation, "/rank_0/stdout.log"));
  };
  EXPECT_EQ(run_once("1", "echo first; exit 3"), 3);
  const std::string job = logs + "/again";
  EXPECT_EQ(output(job, 1), "first\n");
  EXPECT_EQ(output(job, 2), "first\n");
  EXPECT_EQ(run_once("0", "echo second"), 0);
  EXPECT_EQ(output(job, 1), "second\n");
  EXPECT_FALSE(std::filesystem::exists(job + "/generation_2"));
  EXPECT_THAT(ReadFileOrEmpty(job + "/verdict.json"), HasSubstr("SUCCEEDED"));
  std::set<std::string> runs;
  for (const auto& entry : std::filesystem::directory_iterator(job)) {
    if (!entry.is_symlink()) runs.insert(entry.path());
  }
  ASSERT_THAT(runs, SizeIs(2));
  // By their names the earlier one comes first.
  EXPECT_EQ(output(*runs.begin(), 1), "first\n");
  EXPECT_EQ(output(*runs.begin(), 2), "first\n");
  EXPECT_THAT(ReadFileOrEmpty(*runs.begin() + "/verdict.json"), HasSubstr("\"FAILED\""));
}

// By the launcher's socket while it runs, by its files afterwards, here and in another directory.
TEST(RunTest, CommandsFindAJobOfNoServer) {
  const std::string logs = MakeTempDir("logs"), go = MakeTempDir("go") + "/go";
  ASSERT_EQ(mkfifo(go.c_str(), 0600), 0);
  const std::map<std::string, std::string> env = {{"XDG_RUNTIME_DIR", MakeTempDir("run")},
                                                  {"HOME", MakeTempDir("home")}};
  const auto run =
      StartCadre({"run", "--standalone", "--nproc-per-node", "2", "--log-dir", logs, "--job-name",
                  "here", "--", "/bin/sh", "-c", "echo one; echo two; read x < " + go + "; exit 3"},
                 env);
  ASSERT_EQ(run->WaitForLines("two", 2).size(), 2u) << OutputOf(*run);
  const auto ask = [&](const std::vector<std::string>& arguments) {
    const auto asked = StartCadre(arguments, env);
    EXPECT_EQ(asked->Wait(), 0) << OutputOf(*asked);
    return asked->standard_output();
  };
  EXPECT_THAT(ask({"status"}), AllOf(HasSubstr("here "), HasSubstr("running")));
  EXPECT_THAT(ask({"why", "here"}),
              AllOf(HasSubstr("2 of 2 workers run and report no steps\nwhere the ranks are now:\n"),
                    HasSubstr("\n  ranks 0-1 (2 of 2): the first is pid "),
                    Not(HasSubstr("waits for nothing"))));
  EXPECT_THAT(ask({"stacks", "here"}), HasSubstr("job here, generation 1, 2 ranks"));
  // The order is that in which the ranks wrote.
  EXPECT_THAT(ask({"logs", "here", "--tail", "1"}),
              AnyOf("[0]: two\n[1]: two\n", "[1]: two\n[0]: two\n"));
  { std::ofstream(go) << "x\nx\n"; }
  run->Kill(SIGTERM);
  EXPECT_TRUE(run->Wait().has_value());
  EXPECT_THAT(ask({"status"}), AllOf(HasSubstr("RUN  BEGAN"), ContainsRegex("here +1 +2")));
  EXPECT_THAT(ask({"why", "here"}), HasSubstr("here "));
  EXPECT_EQ(ask({"logs", "here", "--rank", "1"}), "one\ntwo\n");
  EXPECT_THAT(ask({"timeline", "here", "--run", "1"}), HasSubstr("GENERATION"));
  const auto absent = StartCadre({"why", "there"}, env);
  EXPECT_EQ(absent->Wait(), 1) << OutputOf(*absent);
  EXPECT_THAT(absent->standard_error(),
              AllOf(HasSubstr("no run of job there has left its files in "), HasSubstr(logs)));
}

// A suspended launcher cannot answer, but has not ended.
//
// Fault (display): A user asks about a job whose launcher is suspended -> `cadre status` and `cadre
// why` say so and how to resume it, and do not wait for an answer
TEST(RunTest, ASuspendedLauncher_IsSaidToBe) {
  const std::string logs = MakeTempDir("logs");
  const std::map<std::string, std::string> env = {{"XDG_RUNTIME_DIR", MakeTempDir("run")},
                                                  {"HOME", MakeTempDir("home")}};
  const auto run = StartCadre({"run", "--standalone", "--log-dir", logs, "--job-name", "still",
                               "--", "/bin/sh", "-c", "echo one; exec sleep 1000"},
                              env);
  ASSERT_TRUE(run->WaitForLine("one").has_value()) << OutputOf(*run);
  const auto ask = [&](const std::vector<std::string>& arguments) {
    const auto asked = StartCadre(arguments, env);
    EXPECT_EQ(asked->Wait(), 0) << OutputOf(*asked);
    return asked->standard_output();
  };
  run->Kill(SIGSTOP);
  std::string status;
  EXPECT_TRUE(Eventually([&] {
    status = ask({"status"});
    return absl::StrContains(status, "suspended");
  })) << status;
  const std::string how = absl::StrCat("kill -CONT ", run->pid());
  EXPECT_THAT(status, AllOf(HasSubstr(how), testing::ContainsRegex("still +1 .* suspended ")));
  EXPECT_THAT(ask({"why", "still"}), AllOf(HasSubstr("still does not run"), HasSubstr(how)));
  run->Kill(SIGCONT);
  EXPECT_THAT(ask({"status"}), AllOf(HasSubstr("still "), HasSubstr("running")));
  run->Kill(SIGINT);
  EXPECT_EQ(run->Wait(), 130) << OutputOf(*run);
}

// The job is named by its script, from which its name is made, and after its end by no name at all.
TEST(RunTest, AJobOfNoServer_IsWatchedAndCancelled) {
  const std::string logs = MakeTempDir("logs");
  const std::map<std::string, std::string> env = {{"XDG_RUNTIME_DIR", MakeTempDir("run")},
                                                  {"HOME", MakeTempDir("home")},
                                                  // It is set for `cadre run`; the launcher must be
                                                  // asked all the same.
                                                  {"CADRE_LOG_DIR", logs}};
  const auto run = StartCadre({"run", "--standalone", "--nproc-per-node", "2", "--job-name",
                               "train-gpt", "--", "/bin/sh", "-c", "echo one; exec sleep 1000"},
                              env);
  ASSERT_EQ(run->WaitForLines("one", 2).size(), 2u) << OutputOf(*run);
  const auto watch = StartCadre({"status", "train_gpt.py", "--watch"}, env);
  const auto all = StartCadre({"status", "--watch"}, env);
  EXPECT_TRUE(watch->WaitForLine("generation 1 running").has_value()) << OutputOf(*watch);
  EXPECT_TRUE(all->WaitForLine("train-gpt: generation 1 running").has_value()) << OutputOf(*all);
  all->Kill(SIGINT);
  const auto cancel = StartCadre({"cancel", "Train_GPT", "--reason", "enough"}, env);
  EXPECT_EQ(cancel->Wait(), 0) << OutputOf(*cancel);
  EXPECT_EQ(cancel->standard_output(), "cancelling train-gpt\n");
  EXPECT_EQ(run->Wait(), 130) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(), HasSubstr("job train-gpt was cancelled: enough"));
  EXPECT_EQ(watch->Wait(), 130) << OutputOf(*watch);
  EXPECT_THAT(watch->standard_output(), HasSubstr("job train-gpt was cancelled: enough"));

  const auto ask = [&](const std::vector<std::string>& arguments, int status) {
    auto asked = StartCadre(arguments, env);
    EXPECT_EQ(asked->Wait(), status) << OutputOf(*asked);
    return asked;
  };
  const auto why = ask({"why"}, 0);
  EXPECT_THAT(why->standard_output(), HasSubstr("train-gpt was cancelled: enough"));
  EXPECT_THAT(why->standard_error(), HasSubstr("the newest job is train-gpt, whose run of "));
  EXPECT_THAT(ask({"logs", "--since", "1h"}, 0)->standard_output(),
              AnyOf("[0]: one\n[1]: one\n", "[1]: one\n[0]: one\n"));
  const auto later = ask({"logs", "train-gpt", "--since", "2100-01-01"}, 0);
  EXPECT_EQ(later->standard_output() + later->standard_error(), "");
  EXPECT_THAT(ask({"cancel", "train_gpt.py"}, 1)->standard_error(),
              HasSubstr("job train-gpt is not running: its last run, which began at "));
  EXPECT_THAT(ask({"logs", "train-gtp"}, 1)->standard_error(),
              HasSubstr("did you mean 'train-gpt'? The newest job"));
}

TEST(RunTest, MuchMoreThanMayWait_IsWholeInAPipeThatIsRead) {
  constexpr int kLines = 2500000;
  auto run = StartStandalone(
      {"--nproc-per-node", "1", "--", "/bin/sh", "-c", absl::StrCat("seq 1 ", kLines)});
  EXPECT_EQ(run->Wait(), 0) << run->standard_error();
  const std::string& out = run->standard_output();
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), kLines);
  EXPECT_TRUE(absl::EndsWith(out, absl::StrCat("] ", kLines, "\n"))) << out.substr(out.size() - 99);
  EXPECT_THAT(run->standard_error(), Not(HasSubstr("lines were dropped")));
}

// Fault (display): The launcher's standard output goes to a full device -> The launcher reports how
// much is lost, workers go on, and the exit status is theirs
TEST(RunTest, OutputToAFullDevice_IsSaidAndTheStatusIsTheWorkers) {
  ProcessOptions options;
  options.argv = {
      "/bin/sh",          "-c",        R"(exec "$@" >/dev/full)", "sh", kCadre,    "run",
      "--standalone",     "--log-dir", MakeTempDir("logs"),       "--", "/bin/sh", "-c",
      "echo lost; exit 5"};
  auto started = Process::Start(options);
  ASSERT_OK(started);
  const auto run = *std::move(started);
  EXPECT_EQ(run->Wait(), 5) << OutputOf(*run);
  EXPECT_THAT(
      run->standard_error(),
      AllOf(HasSubstr("cannot write to standard output: No space left on device; the workers "
                      "continue"),
            HasSubstr("bytes for standard output were lost")));
}

// With `ulimit -f`, in blocks of 512 bytes.
//
// Fault (display): The launcher's output reaches the limit of a file's size (`ulimit -f`) -> The
// launcher reports it, workers go on, and the exit status is theirs
TEST(RunTest, OutputBeyondTheLimitOfAFilesSize_IsSaidAndTheStatusIsTheWorkers) {
  const std::string logs = MakeTempDir("logs");
  ProcessOptions options;
  options.argv = {"/bin/sh",
                  "-c",
                  R"(ulimit -f 4; exec "$@" >$0)",
                  logs + "/out",
                  kCadre,
                  "run",
                  "--standalone",
                  "--log-dir",
                  logs,
                  "--",
                  "/bin/sh",
                  "-c",
                  "seq 1 9999; exit 5"};
  auto started = Process::Start(options);
  ASSERT_OK(started);
  const auto run = *std::move(started);
  EXPECT_EQ(run->Wait(), 5) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(), HasSubstr("cannot write to standard output: File too large"));
}

// A file system of its own, which needs root.
//
// Fault (display): The disk of the log files is full, so that not even a directory can be made ->
// Workers go on, and the launcher reports how much output is lost
TEST(RunTest, AFullDisk_LosesOutputAndNothingElse) {
  const std::string logs = MakeTempDir("logs");
  if (mount("tmpfs", logs.c_str(), "tmpfs", 0, "size=128k,nr_inodes=20") != 0) {
    GTEST_SKIP() << "needs the right to mount";
  }
  // Its second life finds no room for directories either.
  auto run = StartStandalone({"--log-dir", logs, "--job-name", "full", "--max-restarts", "1", "--",
                              "/bin/sh", "-c",
                              absl::StrCat("seq 1 100000; for i in $(seq 20); do touch ", logs,
                                           "/x$i; done 2>/dev/null; [ $CADRE_GENERATION = 2 ]")});
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  umount2(logs.c_str(), MNT_DETACH);
  EXPECT_THAT(run->standard_error(),
              AllOf(HasSubstr("stdout.log: No space left on device; the worker continues"),
                    HasSubstr("bytes of what the worker wrote"),
                    HasSubstr("No space left on device; the workers run, and their output is not "
                              "kept")));
  EXPECT_THAT(run->standard_output(), HasSubstr("] 100000\n"));
}

// Fault (worker): A worker exits with a code other than 0 or is killed by a signal -> The other
// workers are stopped, the first failure stays on record as the cause, and the job restarts while
// its budget (`--max-restarts`) lasts
TEST(RunTest, WorkerKilledOnce_AllRunAgainWithOneRestartCounted) {
  auto run = StartStandalone({"--nproc-per-node", "2", "--max-restarts", "1", "--", kProbe});
  const auto first = NextProbes(*run, 2);
  ASSERT_THAT(first, SizeIs(2)) << OutputOf(*run);
  kill(first[1].pid, SIGKILL);
  const auto second = NextProbes(*run, 2);
  ASSERT_THAT(second, SizeIs(2)) << OutputOf(*run);
  for (const ProbeLine& probe : second) {
    EXPECT_EQ(probe.generation, 2);
    EXPECT_EQ(probe.restarts, 1);
  }
  kill(second[0].pid, SIGKILL);  // the budget is used up
  EXPECT_EQ(run->Wait(), 128 + SIGKILL) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(), HasSubstr("SIGKILL"));
}

// Fault (worker): A worker exits with 93 -> The job is not restarted, and `cadre run` exits with 93
TEST(RunTest, Exit93_IsNeverRestarted) {
  auto run = StartStandalone({"--max-restarts", "5", "--", kProbe, "--exit", "93"});
  EXPECT_EQ(run->Wait(), 93) << OutputOf(*run);
  EXPECT_THAT(OutputOf(*run), ::testing::Not(HasSubstr("generation=2")));
}

// Fault (worker): A worker exits with a code that is listed in `never_exit_codes` -> The job is not
// restarted, and that code is the exit status; other codes are tried again
TEST(RunTest, AnExitCodeThatIsNeverTriedAgain_IsTheStatusAndOthersAreTried) {
  for (const int code : {7, 9, 10}) {
    auto run = StartStandalone({"--never-exit-codes", "7,9", "--max-restarts", "1", "--", kProbe,
                                "--exit", absl::StrCat(code)});
    EXPECT_EQ(run->Wait(), code) << OutputOf(*run);
    const bool tried_again = absl::StrContains(OutputOf(*run), "generation=2");
    EXPECT_EQ(tried_again, code == 10) << OutputOf(*run);
  }
}

TEST(RunTest, EarlyFinisher_WaitsForNobodyAndTheJobSucceeds) {
  auto run = StartStandalone({"--nproc-per-node", "2", "--", kProbe, "--rank", "0", "--exit", "0"});
  const auto probes = NextProbes(*run, 2);
  ASSERT_THAT(probes, SizeIs(2)) << OutputOf(*run);
  const ProbeLine& early = probes[0].rank == 0 ? probes[0] : probes[1];
  EXPECT_TRUE(WaitGone(early.pid, absl::Seconds(5)));
  EXPECT_EQ(run->Wait(absl::Milliseconds(50)), std::nullopt);  // rank 1 still runs
  run->Kill(SIGINT);
  EXPECT_EQ(run->Wait(), 130) << OutputOf(*run);
}

TEST(RunTest, TwoNodesByTwo_EveryRankOnceAndTheSameWorld) {
  const int port = FreePort();
  auto a = StartNode(port, "2", 0, {"--nproc-per-node", "2", "--", kProbe});
  auto b = StartNode(port, "2", 1, {"--nproc-per-node", "2", "--", kProbe});
  std::set<int> ranks;
  for (Process* node : {a.get(), b.get()}) {
    const auto probes = NextProbes(*node, 2);
    ASSERT_THAT(probes, SizeIs(2)) << OutputOf(*node);
    for (const ProbeLine& probe : probes) {
      EXPECT_EQ(probe.world, 4);
      EXPECT_EQ(probe.rank / 2, probe.node);
      ranks.insert(probe.rank);
    }
  }
  EXPECT_EQ(ranks, (std::set<int>{0, 1, 2, 3}));
  a->Kill(SIGINT);
  EXPECT_EQ(a->Wait(), 130) << OutputOf(*a);
  EXPECT_EQ(b->Wait(), 130) << OutputOf(*b);
}

TEST(RunTest, TwoNodes_WorkerKilled_TheRestartCountIsTheSameOnBoth) {
  const int port = FreePort();
  auto a = StartNode(port, "2", 0, {"--nproc-per-node", "2", "--max-restarts", "2", "--", kProbe});
  auto b = StartNode(port, "2", 1, {"--nproc-per-node", "2", "--max-restarts", "2", "--", kProbe});
  ASSERT_THAT(NextProbes(*a, 2), SizeIs(2)) << OutputOf(*a);
  const auto on_b = NextProbes(*b, 2);
  ASSERT_THAT(on_b, SizeIs(2)) << OutputOf(*b);
  kill(on_b[0].pid, SIGKILL);
  for (Process* node : {a.get(), b.get()}) {
    const auto probes = NextProbes(*node, 2);
    ASSERT_THAT(probes, SizeIs(2)) << OutputOf(*node);
    for (const ProbeLine& probe : probes) {
      EXPECT_EQ(probe.generation, 2);
      EXPECT_EQ(probe.restarts, 1);
      EXPECT_EQ(probe.world, 4);
    }
  }
}

TEST(RunTest, TwoNodes_FinalFailure_BothEndWithItsStatusAndNameIt) {
  const int port = FreePort();
  const std::vector<std::string> arguments = {"--nproc-per-node", "2", "--",     kProbe,
                                              "--rank",           "3", "--exit", "5"};
  auto a = StartNode(port, "2", 0, arguments);
  auto b = StartNode(port, "2", 1, arguments);
  for (Process* node : {a.get(), b.get()}) {
    EXPECT_EQ(node->Wait(), 5) << OutputOf(*node);
    EXPECT_THAT(node->standard_error(), AllOf(HasSubstr("rank 3"), HasSubstr("node1")))
        << OutputOf(*node);
  }
}

// Protobuf carries text only as UTF-8, and what a worker says last may be anything.
TEST(RunTest, TwoNodes_LastWordsThatAreNoText_TheJobEndsAsAnyOther) {
  const int port = FreePort();
  const std::vector<std::string> job = {
      "--", "/bin/sh", "-c",
      "if [ $RANK = 1 ]; then printf 'caf\\351\\n' >&2; exit 5; fi; exec sleep 1000"};
  auto a = StartNode(port, "2", 0, job);
  auto b = StartNode(port, "2", 1, job);
  EXPECT_EQ(a->Wait(absl::Seconds(60)), 5) << OutputOf(*a);
  EXPECT_EQ(b->Wait(absl::Seconds(60)), 5) << OutputOf(*b);
  EXPECT_THAT(a->standard_error(), HasSubstr("caf\xef\xbf\xbd"));
}

TEST(RunTest, ElasticJob_LauncherKilled_SurvivorsRunTheNextGeneration) {
  const int port = FreePort();
  std::vector<std::unique_ptr<Process>> nodes;
  for (int i = 0; i < 3; ++i) {
    nodes.push_back(StartNode(port, "2:3", i, {"--settle", "20s", "--", kProbe}));
  }
  for (auto& node : nodes) ASSERT_THAT(NextProbes(*node, 1), SizeIs(1)) << OutputOf(*node);
  const size_t victim = FirstThatDoesNotServe(nodes);
  nodes[victim]->Kill(SIGKILL);
  nodes.erase(nodes.begin() + static_cast<long>(victim));
  for (auto& node : nodes) {
    const auto probes = NextProbes(*node, 1);
    ASSERT_THAT(probes, SizeIs(1)) << OutputOf(*node);
    EXPECT_EQ(probes[0].world, 2);
    EXPECT_EQ(probes[0].generation, 2);
  }
}

// Fault (node): One node of an elastic job gets SIGTERM -> It leaves as preempted, the others form
// the next generation, and no restart is counted
TEST(RunTest, ElasticJob_NodePreempted_TheOthersGoOn) {
  const int port = FreePort();
  std::vector<std::unique_ptr<Process>> nodes;
  for (int i = 0; i < 3; ++i) {
    nodes.push_back(StartNode(port, "2:3", i, {"--settle", "20s", "--", kProbe}));
  }
  for (auto& node : nodes) ASSERT_THAT(NextProbes(*node, 1), SizeIs(1)) << OutputOf(*node);
  const size_t victim = FirstThatDoesNotServe(nodes);
  nodes[victim]->Kill(SIGTERM);
  EXPECT_EQ(nodes[victim]->Wait(), 128 + SIGTERM) << OutputOf(*nodes[victim]);
  nodes.erase(nodes.begin() + static_cast<long>(victim));
  for (auto& node : nodes) {
    const auto probes = NextProbes(*node, 1);
    ASSERT_THAT(probes, SizeIs(1)) << OutputOf(*node);
    EXPECT_EQ(probes[0].world, 2);
    EXPECT_THAT(node->standard_error(), HasSubstr("was preempted in generation 1"))
        << OutputOf(*node);
  }
}

TEST(RunTest, ServerStartedAnewWithoutItsState_TheNodesBeginAgain) {
  const int port = FreePort();
  const std::string port_text = absl::StrCat(port);
  auto server = StartCadre({"server", "--port", port_text, "--state-dir", MakeTempDir("state")});
  ASSERT_TRUE(server->WaitForLine(port_text).has_value()) << OutputOf(*server);
  auto a = StartNode(port, "2", 0, {"--stop-grace", "2s", "--", kProbe});
  auto b = StartNode(port, "2", 1, {"--stop-grace", "2s", "--", kProbe});
  for (Process* node : {a.get(), b.get()})
    ASSERT_THAT(NextProbes(*node, 1), SizeIs(1)) << OutputOf(*node);
  server->Kill(SIGKILL);
  ASSERT_EQ(server->Wait(), 137);
  server = StartCadre({"server", "--port", port_text, "--state-dir", MakeTempDir("state")});
  for (Process* node : {a.get(), b.get()}) {
    const auto probes = NextProbes(*node, 1);
    ASSERT_THAT(probes, SizeIs(1)) << OutputOf(*node) << OutputOf(*server);
    EXPECT_EQ(probes[0].world, 2);
    EXPECT_EQ(probes[0].restarts, 0);
  }
  a->Kill(SIGINT);
  EXPECT_EQ(a->Wait(), 130) << OutputOf(*a);
  EXPECT_EQ(b->Wait(), 130) << OutputOf(*b);
}

TEST(RunTest, AnotherJobAtALaunchersEndpoint_IsRefusedWithAReason) {
  const int port = FreePort();
  auto first = StartNode(port, "1", 0, {"--job-name", "one", "--", kProbe});
  ASSERT_THAT(NextProbes(*first, 1), SizeIs(1)) << OutputOf(*first);
  auto second = StartNode(port, "1", 1, {"--job-name", "two", "--", "/bin/true"});
  EXPECT_EQ(second->Wait(), 75) << OutputOf(*second);
  EXPECT_THAT(second->standard_error(), AllOf(HasSubstr("job one"), HasSubstr("cadre server")));
}

// Fault (node): Nodes are missing at the `join_timeout` -> The job fails with 75 and says how many
// nodes are missing
TEST(RunTest, NodesMissing_TheJoinTimeoutSaysHowManyAndStatusIs75) {
  auto run = StartNode(FreePort(), "2", 0, {"--join-timeout", "200ms", "--", kProbe});
  EXPECT_EQ(run->Wait(), 75) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(), HasSubstr("1 of 2 nodes"));
}

TEST(RunTest, Terminal_ShowsALiveStatusBlock) {
  auto run = StartCadre({"run", "--standalone", "--nproc-per-node", "2", "--", kProbe},
                        {{"TERM", "xterm"}}, true);
  ASSERT_THAT(NextProbes(*run, 2), SizeIs(2)) << OutputOf(*run);
  run->Type("\x03");
  EXPECT_EQ(run->Wait(), 130) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr("2/2")) << "workers up";
}

// Its ranks would meet those of the other.
//
// Fault (input): Two jobs on one machine are given the same `--master-port` -> The second one exits
// with 69 before it starts a worker, and names the process that has the port
TEST(RunTest, TwoJobsWithOneMasterPort) {
  const std::string port = absl::StrCat(FreePort());
  const char* const serves =
      "import os, socket, sys\n"
      "at = socket.create_server((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])))\n"
      "print('rank', os.environ['RANK'], 'serves', flush=True)\n"
      "at.accept()\n";
  const auto first =
      StartStandalone({"--master-port", port, "--", "/usr/bin/python3", "-c", serves});
  ASSERT_TRUE(first->WaitForLine("rank 0 serves").has_value()) << OutputOf(*first);
  const auto second = StartStandalone({"--master-port", port, "--nproc-per-node", "2",
                                       "--max-restarts", "3", "--", "/bin/sh", "-c", "echo runs"});
  EXPECT_EQ(second->Wait(), 69) << OutputOf(*second);
  EXPECT_THAT(second->standard_output(), Not(HasSubstr("runs")));
  EXPECT_THAT(second->standard_error(),
              AllOf(ContainsRegex(absl::StrCat("failed: MASTER_PORT ", port,
                                               " is taken by python3[^ ]* \\(pid [0-9]+\\) on ")),
                    HasSubstr("so no worker was started there; give another --master-port"),
                    Not(HasSubstr("cannot start")), Not(HasSubstr("Failures that followed"))));
}

TEST(RunTest, Environment_HasWhatTorchrunSets) {
  auto run = StartStandalone({"--nproc-per-node", "2", "--max-restarts", "4", "--job-name", "envs",
                              "--", "/bin/sh", "-c", "test $LOCAL_RANK = 1 && env; true"});
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  for (const char* expected : {"RANK=1",
                               "LOCAL_RANK=1",
                               "WORLD_SIZE=2",
                               "LOCAL_WORLD_SIZE=2",
                               "GROUP_RANK=0",
                               "GROUP_WORLD_SIZE=1",
                               "ROLE_NAME=default",
                               "ROLE_RANK=1",
                               "ROLE_WORLD_SIZE=2",
                               "MASTER_ADDR=127.0.0.1",
                               "MASTER_PORT=",
                               "TORCHELASTIC_RESTART_COUNT=0",
                               "TORCHELASTIC_MAX_RESTARTS=4",
                               "TORCHELASTIC_RUN_ID=envs",
                               "TORCHELASTIC_USE_AGENT_STORE=False",
                               "TORCHELASTIC_ERROR_FILE=/",
                               "OMP_NUM_THREADS=1",
                               "NODE_RANK=0",
                               "CADRE_JOB=envs",
                               "CADRE_GENERATION=1",
                               "CADRE_AGENT=/",
                               "CADRE_TOKEN_FILE=/",
                               "CADRE_PROGRESS_FD="}) {
    EXPECT_THAT(run->standard_output(), HasSubstr(expected));
  }
}

}  // namespace
}  // namespace cadre
