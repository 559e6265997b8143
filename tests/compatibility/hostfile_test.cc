// cadre run --hostfile, on two nodes that are network namespaces. Needs root; skipped without.
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/certificates.h"
#include "tests/testing/launch.h"
#include "tests/testing/node_network.h"
#include "tests/testing/node_shell.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kTimeout = absl::Seconds(60);

class HostfileTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    entered_ = new absl::Status(NodeNetwork::EnterWith(2));
    if (entered_->ok()) *entered_ = NodeNetwork::NameNodes({"node1", "node2", "node3"});
  }
  void SetUp() override {
    if (absl::IsPermissionDenied(*entered_)) GTEST_SKIP() << entered_->message();
    ASSERT_OK(*entered_);
  }

  // As ssh, but on node 2 it runs `there`.
  static std::string ShellThatRuns(const std::string& there) {
    const std::string path = MakeTempDir("shell") + "/ssh";
    std::ofstream(path) << "#!/bin/bash\n[[ $1 == node2 ]] && exec " << there << "\nexec "
                        << MakeNodeShell() << " \"$@\"\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }

  std::unique_ptr<Process> Run(const std::string& hosts, const std::vector<std::string>& more,
                               const std::string& shell = MakeNodeShell(), bool terminal = false) {
    const std::string directory = MakeTempDir("hosts");
    std::ofstream(directory + "/hosts") << hosts;
    ProcessOptions options;
    options.argv = {
        std::filesystem::absolute(kCadre), "run", "--hostfile", "hosts", "--ssh-command", shell};
    options.argv.insert(options.argv.end(), more.begin(), more.end());
    options.working_dir = directory;
    options.terminal = terminal;
    if (terminal) options.env["TERM"] = "xterm";
    auto process = Process::Start(options);
    EXPECT_OK(process);
    return process.ok() ? *std::move(process) : nullptr;
  }

  static absl::Status* entered_;
  const std::string probe_ = std::filesystem::absolute(kProbe);
};
absl::Status* HostfileTest::entered_;

constexpr char kHosts[] = "node1 slots=1\nme@node2 slots=2\n";

TEST_F(HostfileTest, SlotsAreWorkers) {
  const auto run = Run(kHosts, {"--env", "SAID=it's", "sh", "-c",
                                "echo rank=$RANK of $WORLD_SIZE at $NODE_RANK $(hostname) $SAID"});
  EXPECT_EQ(run->Wait(kTimeout), 0) << OutputOf(*run);
  for (const char* line : {"rank=0 of 3 at 0 node1 it's", "rank=1 of 3 at 1 node2 it's",
                           "rank=2 of 3 at 1 node2 it's"}) {
    EXPECT_THAT(run->standard_output(), HasSubstr(line)) << OutputOf(*run);
  }
  // The token went by standard input.
  EXPECT_THAT(OutputOf(*run), Not(HasSubstr("token")));
}

// As MPI's launchers do it. /bin/false is in the place of ssh.
TEST_F(HostfileTest, ThisMachineNeedsNoSsh) {
  char host[256] = "";
  ASSERT_EQ(gethostname(host, sizeof(host)), 0);
  for (const std::string& hosts :
       {std::string("localhost:2\n"), absl::StrCat(host, " slots=2\n"),
        absl::StrCat(kBridgeAddress, " slots=2\n"), std::string("root@127.0.0.1 slots=2\n")}) {
    const auto run = Run(hosts, {"sh", "-c", "echo rank=$RANK of $WORLD_SIZE"}, "/bin/false");
    EXPECT_EQ(run->Wait(kTimeout), 0) << hosts << OutputOf(*run);
    EXPECT_THAT(run->standard_output(), HasSubstr("rank=1 of 2")) << OutputOf(*run);
  }
  // Another user's processes are not ours to start.
  const auto run = Run("nobody@localhost\n", {"true"}, "/bin/false");
  EXPECT_EQ(run->Wait(kTimeout), 1) << OutputOf(*run);
}

TEST_F(HostfileTest, ThisMachineAndAnother) {
  const auto run = Run("localhost:1\nnode2:1\n", {"sh", "-c", "echo rank=$RANK at $MASTER_ADDR"});
  EXPECT_EQ(run->Wait(kTimeout), 0) << OutputOf(*run);
  for (const char* line : {"rank=0 at 10.77.0.254", "rank=1 at 10.77.0.254"}) {
    EXPECT_THAT(run->standard_output(), HasSubstr(line)) << OutputOf(*run);
  }
}

// As sshd starts a command: with nothing of the environment here.
TEST_F(HostfileTest, WorkersHaveThePythonAndTheVariablesOfTheCommand) {
  const std::string shell = MakeTempDir("shell") + "/ssh";
  std::ofstream(shell) << "#!/bin/bash\nexec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "
                       << MakeNodeShell() << " \"$@\"\n";
  std::filesystem::permissions(shell, std::filesystem::perms::owner_all);
  const std::string venv = MakeTempDir("venv");
  std::filesystem::create_directories(venv + "/bin");
  std::filesystem::create_symlink("/usr/bin/python3", venv + "/bin/python3");
  setenv("VIRTUAL_ENV", venv.c_str(), 1);
  setenv("NCCL_DEBUG", "it's INFO", 1);
  setenv("PYTHONPATH", "/somewhere", 1);
  setenv("DATA_DIR", "/data", 1);
  setenv("SECRET", "mine", 1);
  const auto run = Run("node2\n",
                       {"--env", "DATA_DIR", "sh", "-c",
                        "echo $NCCL_DEBUG, ${PYTHONPATH##*:}, $DATA_DIR, $SECRET.; command -v "
                        "python3"},
                       shell);
  EXPECT_EQ(run->Wait(kTimeout), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr("it's INFO, /somewhere, /data, ."));
  EXPECT_THAT(run->standard_output(), HasSubstr(venv + "/bin/python3"));
  const std::string script = MakeTempDir("script") + "/which.py";
  std::ofstream(script) << "import sys\nprint('runs under', sys.executable)\n";
  const auto program = Run("node2\n", {script}, shell);
  EXPECT_EQ(program->Wait(kTimeout), 0) << OutputOf(*program);
  EXPECT_THAT(program->standard_output(), HasSubstr("runs under " + venv + "/bin/python3"));
  for (const char* name : {"VIRTUAL_ENV", "NCCL_DEBUG", "PYTHONPATH", "DATA_DIR", "SECRET"}) {
    unsetenv(name);
  }
}

TEST_F(HostfileTest, WithCertificatesBothSidesShowThem) {
  const std::string certificates = MakeCertificates(kBridgeAddress);
  const auto run = Run(kHosts, {"--tls-dir", certificates, "sh", "-c", "echo rank=$RANK"});
  EXPECT_EQ(run->Wait(kTimeout), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr("rank=2")) << OutputOf(*run);
}

TEST_F(HostfileTest, WorkersStatusIsTheJobs) {
  const auto run = Run(kHosts, {probe_, "--exit", "9", "--rank", "2"});
  EXPECT_EQ(run->Wait(kTimeout), 9) << OutputOf(*run);
}

// The terminal must look as if this launcher ran the job itself: the output of the hosts stands
// above the state.
TEST_F(HostfileTest, ATerminalShowsTheStateOfTheJob) {
  const auto run = Run(kHosts, {"--job-name", "hosts-job", probe_}, MakeNodeShell(), true);
  ASSERT_EQ(NextProbes(*run, 3, kTimeout).size(), 3u) << OutputOf(*run);
  EXPECT_TRUE(Eventually([&] {
    run->WaitForLine("nobody says this", absl::Milliseconds(50));
    return absl::StrContains(run->standard_output(), "workers 3/3");
  })) << OutputOf(*run);
  // Other commands of the user find the job too.
  const auto cancel = StartCadre({"cancel", "hosts_job"});
  EXPECT_EQ(cancel->Wait(kTimeout), 0) << OutputOf(*cancel);
  EXPECT_EQ(run->Wait(kTimeout), 130) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr("was cancelled: a user's request"));
}

TEST_F(HostfileTest, CtrlC_EndsTheJobOnAllHosts) {
  const auto run = Run(kHosts, {probe_});
  const std::vector<ProbeLine> probes = NextProbes(*run, 3, kTimeout);
  ASSERT_EQ(probes.size(), 3u) << OutputOf(*run);
  run->Kill(SIGINT);
  EXPECT_EQ(run->Wait(kTimeout), 130) << OutputOf(*run);
  for (const ProbeLine& probe : probes) EXPECT_TRUE(WaitGone(probe.pid, kTimeout));
}

// Fault (node): A scheduler warns the launcher of a host file with SIGUSR1 -> The job ends on all
// hosts with 75, which means that it can go on later
TEST_F(HostfileTest, ASchedulersWarning_EndsTheJobOnAllHostsToGoOnLater) {
  const auto run = Run(kHosts, {probe_});
  const std::vector<ProbeLine> probes = NextProbes(*run, 3, kTimeout);
  ASSERT_EQ(probes.size(), 3u) << OutputOf(*run);
  run->Kill(SIGUSR1);
  EXPECT_EQ(run->Wait(kTimeout), 75) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(), HasSubstr("preempted: SIGUSR1 at the host that started it"));
  for (const ProbeLine& probe : probes) EXPECT_TRUE(WaitGone(probe.pid, kTimeout));
}

TEST_F(HostfileTest, HostOutOfReach_IsNamedAndEndsTheJob) {
  const auto run = Run("node1\nnode3\n", {probe_});
  EXPECT_EQ(run->Wait(kTimeout), 69) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(), HasSubstr("host node3 ended with status 255: ssh could not"))
      << OutputOf(*run);
}

TEST_F(HostfileTest, SshThatHangs_IsEndedWithTheJob) {
  const auto run =
      Run("node1\nnode2\n", {"--join-timeout", "1s", "true"}, ShellThatRuns("sleep 1000"));
  EXPECT_EQ(run->Wait(kTimeout), 75) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(), HasSubstr("1 of 2 nodes joined")) << OutputOf(*run);
}

TEST_F(HostfileTest, SshThatRunsAnotherCommand_IsNamedAndEndsTheJob) {
  const auto run = Run("node1\nnode2\n", {probe_}, ShellThatRuns("true"));
  EXPECT_EQ(run->Wait(kTimeout), 69) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(), HasSubstr("host node2 ended with status 0, but the job has"))
      << OutputOf(*run);
}

// It would be alone in a job of the same name, which the others have ended.
TEST_F(HostfileTest, HostThatComesAfterTheEnd_DoesNotRunTheJobAgain) {
  const std::string path = MakeTempDir("shell") + "/ssh";
  std::ofstream(path) << "#!/bin/bash\nif [[ $1 == node2 ]]; then\n"
                      << "  while [[ ! -e over ]]; do sleep 0.05; done\n  exec " << MakeNodeShell()
                      << " \"$@\"\nfi\n"
                      << MakeNodeShell() << " \"$@\"\nstatus=$?\ntouch over\nexit $status\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  const auto run =
      Run("node1\nnode2\n",
          {"--nnodes", "1:2", "--settle", "10ms", "sh", "-c", "echo trains; exit 7"}, path);
  EXPECT_EQ(run->Wait(kTimeout), 7) << OutputOf(*run);
  const std::string& out = run->standard_output();
  EXPECT_EQ(out.find("trains"), out.rfind("trains")) << OutputOf(*run);
}

TEST_F(HostfileTest, AnOldFlag_IsNamedOnceForAllHosts) {
  const auto run = Run("node1\nnode2\n", {"--stop-grace", "1s", "true"});
  EXPECT_EQ(run->Wait(kTimeout), 0) << OutputOf(*run);
  const std::string& said = run->standard_error();
  EXPECT_THAT(said, HasSubstr("--stop-grace 1s is now --set timeouts.stop_grace=1s"));
  EXPECT_EQ(said.find("is now --set"), said.rfind("is now --set")) << OutputOf(*run);
}

TEST_F(HostfileTest, BadLine_IsOneLine) {
  const auto run = Run("node1 slots=many\n", {probe_});
  EXPECT_EQ(run->Wait(kTimeout), 64);
  EXPECT_EQ(run->standard_error(), "cadre: hosts:1: expected slots=N, got 'slots=many'\n");
}

}  // namespace
}  // namespace cadre
