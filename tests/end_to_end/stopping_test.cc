// Nothing outlives its launcher: Ctrl-C, and every process of the launcher killed in turn.
#include <dirent.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr absl::Duration kGone = absl::Seconds(1);

// The supervisor of a launcher: its child of that name.
pid_t SupervisorOf(pid_t launcher) {
  const std::string children =
      ReadFileOrEmpty(absl::StrCat("/proc/", launcher, "/task/", launcher, "/children"));
  for (absl::string_view word : absl::StrSplit(children, ' ', absl::SkipWhitespace())) {
    pid_t pid = 0;
    if (absl::SimpleAtoi(word, &pid) &&
        absl::StrContains(ReadFileOrEmpty(absl::StrCat("/proc/", pid, "/comm")),
                          "cadre-superviso")) {
      return pid;
    }
  }
  return -1;
}

// Two workers with a grandchild each, which called setsid; pids of all four.
struct Family {
  std::unique_ptr<Process> run;
  std::vector<pid_t> pids;
};

Family StartFamily(const std::vector<std::string>& probe_options = {}) {
  std::vector<std::string> arguments = {"--nproc-per-node", "2", "--", kProbe, "--setsid-child"};
  arguments.insert(arguments.end(), probe_options.begin(), probe_options.end());
  Family family{StartStandalone(arguments), {}};
  for (const std::string& line : family.run->WaitForLines("pid=", 4)) {
    family.pids.push_back(ParseProbe(line).pid);
  }
  EXPECT_THAT(family.pids, SizeIs(4)) << OutputOf(*family.run);
  return family;
}

void ExpectAllGone(const Family& family) {
  for (const pid_t pid : family.pids)
    EXPECT_TRUE(WaitGone(pid, kGone)) << pid << OutputOf(*family.run);
}

TEST(StoppingTest, CtrlC_StopsWithGraceAndStatus130) {
  Family family = StartFamily();
  family.run->Kill(SIGINT);
  EXPECT_EQ(family.run->Wait(), 130) << OutputOf(*family.run);
  ExpectAllGone(family);
}

// Fault (worker): A worker ignores SIGTERM -> It gets SIGKILL after the grace, or on a second
// Ctrl-C: it is gone within 3 s of a grace of 30 s
TEST(StoppingTest, CtrlCTwice_KillsWorkersThatIgnoreSigterm) {
  Family family = StartFamily({"--ignore-term"});
  family.run->Kill(SIGINT);
  EXPECT_EQ(family.run->Wait(absl::Milliseconds(300)), std::nullopt) << "the grace is 30 s";
  family.run->Kill(SIGINT);
  EXPECT_EQ(family.run->Wait(absl::Seconds(3)), 130) << OutputOf(*family.run);
  ExpectAllGone(family);
}

// Whichever node serves the rendezvous, and so ends the server, too.
//
// Fault (worker): The user types Ctrl-C twice at one launcher -> Workers on all nodes are killed,
// and all nodes receive the verdict
TEST(StoppingTest, CtrlCTwice_KillsOnAllNodesWhichHearTheVerdict) {
  for (const int interrupted : {0, 1}) {
    const int port = FreePort();
    std::vector<std::unique_ptr<Process>> nodes;
    for (int i = 0; i < 2; ++i) {
      nodes.push_back(StartNode(port, "2", i, {"--", kProbe, "--ignore-term"}));
    }
    for (auto& node : nodes) ASSERT_THAT(NextProbes(*node, 1), SizeIs(1)) << OutputOf(*node);
    nodes[interrupted]->Kill(SIGINT);
    for (auto& node : nodes) {
      ASSERT_TRUE(node->WaitForLine("stopping generation 1").has_value()) << OutputOf(*node);
    }
    nodes[interrupted]->Kill(SIGINT);
    for (auto& node : nodes) {
      EXPECT_EQ(node->Wait(absl::Seconds(5)), 130) << OutputOf(*node);
      EXPECT_TRUE(absl::StrContains(node->standard_error(), "cancelled: SIGINT at node"))
          << OutputOf(*node);
    }
  }
}

// Fault (node): The terminal of a launcher that nohup started is closed -> The launcher and its job
// go on
TEST(StoppingTest, UnderNohup_TheEndOfTheTerminalIsNotHeard) {
  auto run = StartProgram("/bin/sh", {"-c", R"(trap "" HUP; exec "$0" "$@")", kCadre, "run",
                                      "--standalone", "--", kProbe});
  ASSERT_TRUE(run->WaitForLine("pid=").has_value()) << OutputOf(*run);
  run->Kill(SIGHUP);
  run->Kill(SIGTERM);
  EXPECT_EQ(run->Wait(), 143) << OutputOf(*run);
}

// A shell with job control, and a user in front of it.
std::unique_ptr<Process> StartShell() {
  return StartProgram("/bin/bash", {"--norc", "--noprofile", "-i"},
                      {{"TERM", "xterm"}, {"PS1", "$ "}}, /*terminal=*/true);
}

bool IsSuspended(pid_t pid) {
  return absl::StrContains(ReadFileOrEmpty(absl::StrCat("/proc/", pid, "/stat")), ") T ");
}

// Fault (node): The user types Ctrl-Z at a launcher -> Its workers are suspended with it and resume
// with it; if no shell could resume it, all resume at once
TEST(StoppingTest, CtrlZ_SuspendsTheWorkersAndFgHasThemGoOn) {
  const auto shell = StartShell();
  shell->Type(absl::StrCat(kCadre, " run --standalone -- ", kProbe, "\n"));
  const auto line = shell->WaitForLine("pid=");
  ASSERT_TRUE(line.has_value()) << OutputOf(*shell);
  const pid_t worker = ParseProbe(*line).pid;
  shell->Type("\x1a");
  EXPECT_TRUE(shell->WaitForLine("Stopped").has_value()) << OutputOf(*shell);
  EXPECT_TRUE(Eventually([&] { return IsSuspended(worker); })) << OutputOf(*shell);
  shell->Type("fg\n");
  EXPECT_TRUE(Eventually([&] { return !IsSuspended(worker); })) << OutputOf(*shell);
  EXPECT_TRUE(IsAlive(worker));
  shell->Type("\x03");
  EXPECT_TRUE(WaitGone(worker, absl::Seconds(20))) << OutputOf(*shell);
}

// Where a shell's prompt is, nothing moves the cursor.
//
// Fault (display): A launcher runs in the background of a terminal -> It writes plain lines and
// does not move the cursor
TEST(StoppingTest, InTheBackgroundOfATerminal_LinesAloneAreWritten) {
  const auto shell = StartShell();
  shell->Type(absl::StrCat(kCadre, " run --standalone -- /bin/sh -c 'echo said $((1 + 1))' &\n"));
  EXPECT_TRUE(shell->WaitForLine("said 2").has_value()) << OutputOf(*shell);
  shell->Type("wait; echo an''end\n");
  EXPECT_TRUE(shell->WaitForLine("anend").has_value()) << OutputOf(*shell);
  EXPECT_THAT(shell->standard_output(), Not(HasSubstr("\x1b[7m")));
  EXPECT_THAT(shell->standard_output(), Not(HasSubstr("\x1b[J")));
}

// A script of bash that does not `exec` its program, as most are.
//
// Fault (worker): A worker is a bash script whose program saves on SIGTERM, and bash itself ends at
// once -> The program has the rest of the grace
TEST(StoppingTest, CtrlC_WhatAScriptStartedSavesFirst) {
  const std::string directory = MakeTempDir("script"), script = directory + "/job.sh";
  std::ofstream(script) << "python3 - <<'END'\n"
                           "import os, signal, time\n"
                           "def save(*_):\n"
                           "    time.sleep(0.3)\n"
                           "    open('"
                        << directory
                        << "/saved', 'w').write('all of it')\n"
                           "    os._exit(0)\n"
                           "signal.signal(signal.SIGTERM, save)\n"
                           "print('trains', flush=True)\n"
                           "while True: signal.pause()\n"
                           "END\n"
                           "echo never\n";
  auto run = StartStandalone({"--", "/bin/bash", script});
  ASSERT_TRUE(run->WaitForLine("trains").has_value()) << OutputOf(*run);
  run->Kill(SIGINT);
  EXPECT_EQ(run->Wait(), 130) << OutputOf(*run);
  EXPECT_EQ(ReadFileOrEmpty(directory + "/saved"), "all of it");
}

TEST(StoppingTest, Sigterm_StopsWithStatus143) {
  Family family = StartFamily();
  family.run->Kill(SIGTERM);
  EXPECT_EQ(family.run->Wait(), 143) << OutputOf(*family.run);
  ExpectAllGone(family);
}

// Fault (node): A spare node gets SIGTERM -> It leaves, and the job goes on, also one of fixed size
TEST(StoppingTest, Sigterm_AtASpareOfAFixedJob_TheJobGoesOn) {
  const int port = FreePort();
  std::vector<std::unique_ptr<Process>> nodes;
  for (int i = 0; i < 2; ++i) nodes.push_back(StartNode(port, "2", i, {"--", kProbe}));
  for (auto& node : nodes) ASSERT_THAT(NextProbes(*node, 1), SizeIs(1)) << OutputOf(*node);
  auto spare = StartNode(port, "2", 2, {"--spares", "1", "--", kProbe});
  ASSERT_TRUE(spare->WaitForLine("in reserve").has_value()) << OutputOf(*spare);
  spare->Kill(SIGTERM);
  EXPECT_EQ(spare->Wait(), 143) << OutputOf(*spare);
  nodes[0]->Kill(SIGINT);
  for (auto& node : nodes) EXPECT_EQ(node->Wait(), 130) << OutputOf(*node);
}

// Before anything reads the signals it waits as any other program does.
//
// Fault (node): A launcher, server or agent gets a signal while it waits for its token, a name or
// its state -> It and its supervisor end at once, by that signal
TEST(StoppingTest, WhoWaitsForItsToken_EndsAtOnce) {
  const std::string pipe = MakeTempDir("pipe") + "/token";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    auto run = StartProgram(
        "/bin/sh", {"-c", R"(exec 3<>"$0"; exec "$@" < "$0")", pipe, kCadre, "run", "--nnodes", "2",
                    "--rdzv-endpoint", absl::StrCat("127.0.0.1:", FreePort()), "--token-file", "-",
                    "/bin/true"});
    // That is started before the token is read.
    ASSERT_TRUE(Eventually([&] { return SupervisorOf(run->pid()) > 0; }));
    const pid_t supervisor = SupervisorOf(run->pid());
    run->Kill(signal);
    EXPECT_EQ(run->Wait(), 128 + signal) << OutputOf(*run);
    EXPECT_TRUE(WaitGone(supervisor, kGone));
  }
}

// Fault (node): A launcher is killed by any signal -> Its supervisor kills every worker, removes
// the launcher's directory, and exits
TEST(StoppingTest, LauncherKilled_NothingIsLeft) {
  Family family = StartFamily({"--ignore-term"});
  const pid_t supervisor = SupervisorOf(family.run->pid());
  ASSERT_GT(supervisor, 0);
  family.run->Kill(SIGKILL);
  ExpectAllGone(family);
  EXPECT_TRUE(WaitGone(supervisor, kGone));
}

// Of its workers' checkpoints, which would fill the machine's.
//
// Fault (node): A launcher is killed whose workers keep checkpoints in memory -> Its supervisor
// also frees that memory
TEST(StoppingTest, LauncherKilled_NoMemoryIsLeft) {
  auto run = StartStandalone({"--", "sh", "-c",
                              "touch $CADRE_CHECKPOINT_MEMORY/state &&"
                              " echo memory=$(readlink -f $CADRE_CHECKPOINT_MEMORY) &&"
                              " exec sleep 1000"});
  const auto line = run->WaitForLine("memory=/");
  ASSERT_TRUE(line.has_value()) << OutputOf(*run);
  const std::string memory = line->substr(line->find("memory=") + 7);
  EXPECT_EQ(access((memory + "/state").c_str(), F_OK), 0) << memory;
  const pid_t supervisor = SupervisorOf(run->pid());
  run->Kill(SIGKILL);
  EXPECT_TRUE(WaitGone(supervisor, kGone));
  EXPECT_NE(access(memory.c_str(), F_OK), 0) << memory;
}

// Fault (node): The supervisor is stopped by SIGSTOP -> Its agent sends SIGCONT and reports that;
// exits of workers that happened meanwhile are noticed
TEST(StoppingTest, SupervisorStopped_GoesOnAndWhatEndedMeanwhileIsSeen) {
  Family family = StartFamily();
  const pid_t supervisor = SupervisorOf(family.run->pid());
  ASSERT_GT(supervisor, 0);
  kill(supervisor, SIGSTOP);
  kill(family.pids[0], SIGKILL);
  EXPECT_EQ(family.run->Wait(absl::Seconds(20)), 128 + SIGKILL) << OutputOf(*family.run);
  EXPECT_THAT(
      family.run->standard_error(),
      ::testing::HasSubstr(absl::StrCat("cadre-supervisor, pid ", supervisor,
                                        ", was stopped by a signal and has been continued")));
  ExpectAllGone(family);
}

// Fault (node): The supervisor is stopped by SIGSTOP, and then its agent dies -> The supervisor
// goes on and kills every worker
TEST(StoppingTest, SupervisorStoppedAndLauncherKilled_NothingIsLeft) {
  Family family = StartFamily({"--ignore-term"});
  const pid_t supervisor = SupervisorOf(family.run->pid());
  ASSERT_GT(supervisor, 0);
  // The launcher first, so that it cannot let it go on.
  family.run->Kill(SIGSTOP);
  kill(supervisor, SIGSTOP);
  family.run->Kill(SIGKILL);
  ExpectAllGone(family);
  EXPECT_TRUE(WaitGone(supervisor, kGone));
}

TEST(StoppingTest, SupervisorKilled_NothingIsLeftAndTheLauncherSaysSo) {
  Family family = StartFamily({"--ignore-term"});
  const pid_t supervisor = SupervisorOf(family.run->pid());
  ASSERT_GT(supervisor, 0);
  kill(supervisor, SIGKILL);
  ExpectAllGone(family);
  EXPECT_EQ(family.run->Wait(absl::Seconds(5)), 128 + SIGKILL) << OutputOf(*family.run);
  // Not only the launcher's own line says so but the verdict too.
  EXPECT_THAT(family.run->standard_error(),
              ::testing::ContainsRegex("failed: .*rank [01] .*was killed: cadre-supervisor, pid "
                                       "[0-9]*, was killed by signal 9 .by another process, or "
                                       "by the kernel"));
}

// Fault (node): The supervisor is killed -> The agent kills every worker and starts another
// supervisor; the job restarts within its budget, and the verdict names the supervisor's signal
TEST(StoppingTest, SupervisorKilled_TheJobRestartsUnderAnotherOne) {
  const std::string logs = MakeTempDir("logs");
  auto run = StartStandalone({"--nproc-per-node", "2", "--max-restarts", "1", "--log-dir", logs,
                              "--job-name", "again", "--", kProbe});
  const auto first = NextProbes(*run, 2);
  ASSERT_EQ(first.size(), 2u) << OutputOf(*run);
  const pid_t supervisor = SupervisorOf(run->pid());
  ASSERT_GT(supervisor, 0);
  kill(supervisor, SIGKILL);
  const auto second = NextProbes(*run, 2);
  ASSERT_EQ(second.size(), 2u) << OutputOf(*run);
  EXPECT_EQ(second[0].generation, 2);
  for (const ProbeLine& probe : first) EXPECT_TRUE(WaitGone(probe.pid, kGone));
  run->Kill(SIGINT);
  EXPECT_EQ(run->Wait(), 130) << OutputOf(*run);
  EXPECT_THAT(ReadFileOrEmpty(logs + "/again/verdict.json"),
              ::testing::HasSubstr("was killed: cadre-supervisor"));
  EXPECT_THAT(ReadFileOrEmpty(logs + "/again/timeline.json"),
              ::testing::HasSubstr("was killed: cadre-supervisor"));
}

// Fault (worker): A worker's child has called `setsid`, or holds the worker's output open -> It is
// killed with its worker's generation, and the worker's exit is reported at once
TEST(StoppingTest, LauncherStoppedWhileOneWorkerFails_LeavesNoGrandchild) {
  auto run = StartStandalone(
      {"--nproc-per-node", "2", "--", kProbe, "--setsid-child", "--rank", "0", "--exit", "4"});
  std::vector<pid_t> pids;
  for (const std::string& line : run->WaitForLines("pid=", 4)) pids.push_back(ParseProbe(line).pid);
  EXPECT_EQ(run->Wait(), 4) << OutputOf(*run);
  for (const pid_t pid : pids) EXPECT_TRUE(WaitGone(pid, kGone)) << OutputOf(*run);
}

}  // namespace
}  // namespace cadre
