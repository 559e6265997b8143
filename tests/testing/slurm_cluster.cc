#include "tests/testing/slurm_cluster.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/exit_codes.h"
#include "base/status_macros.h"
#include "base/token.h"
#include "gtest/gtest.h"
#include "tests/testing/node_network.h"

namespace cadre {
namespace {

constexpr int kNodes = 2;
constexpr absl::Duration kStartTimeout = absl::Seconds(60);
constexpr absl::Duration kLook = absl::Milliseconds(100);

// $D is the cluster's directory, $HOST this machine's name. Ports are the namespaces' own.
constexpr char kConfiguration[] = R"(ClusterName=test
SlurmctldHost=$HOST($HEAD)
SlurmctldPort=6817
SlurmdPort=6818
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$D/munge.sock,cred_expire=5
StateSaveLocation=$D/state
SlurmctldPidFile=$D/slurmctld.pid
SlurmctldLogFile=$D/slurmctld.log
SlurmdPidFile=$D/%n.pid
SlurmdLogFile=$D/%n.log
SlurmdSpoolDir=$D/spool-%n
SlurmdParameters=config_overrides
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdTimeout=5
KillWait=5
MpiDefault=none
ReturnToService=2
NodeName=node[1-2] CPUs=4 State=UNKNOWN
PartitionName=all Nodes=node[1-2] Default=YES State=UP MaxTime=INFINITE
)";

bool IsThere(const char* program) { return access(program, X_OK) == 0; }

void Replace(std::string& text, const std::string& what, const std::string& with) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size()) {
    text.replace(at, what.size(), with);
  }
}

// What tells a node's processes from others.
std::string NetworkOf(const std::string& process) {
  std::error_code error;
  return std::filesystem::read_symlink(absl::StrCat("/proc/", process, "/ns/net"), error).string();
}

}  // namespace

int RunAmongThemselves(const std::function<int()>& run) {
  if (unshare(CLONE_NEWPID | CLONE_NEWNS) == 0) {
    const pid_t first = fork();
    if (first > 0) {
      int status = 0;
      while (waitpid(first, &status, 0) < 0 && errno == EINTR) {
      }
      return ExitStatusOfWait(status);
    }
    // The first process of the namespace: with it all others end.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0) {
      mount("proc", "/proc", "proc", 0, nullptr);
    }
  }
  return run();
}

int RunTestsAmongThemselves(int argc, char** argv) {
  return RunAmongThemselves([&] {
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
  });
}

std::string SlurmCluster::WriteConfiguration() {
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  std::string text = kConfiguration;
  Replace(text, "$D", directory_);
  Replace(text, "$HOST", host);
  Replace(text, "$HEAD", kBridgeAddress);
  const std::string path = directory_ + "/slurm.conf";
  std::ofstream(path) << text;
  // slurmd asks for the kernel's cgroups even where no plugin uses them.
  std::ofstream(directory_ + "/cgroup.conf") << "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n";
  return path;
}

std::unique_ptr<Process> SlurmCluster::Daemon(std::vector<std::string> argv,
                                              const std::string& log) {
  ProcessOptions options;
  options.argv = {"sh", "-c", absl::StrCat("exec \"$@\" >> ", directory_, "/", log, " 2>&1"), "sh"};
  options.argv.insert(options.argv.end(), argv.begin(), argv.end());
  options.working_dir = directory_;
  auto process = Process::Start(options);
  EXPECT_TRUE(process.ok()) << process.status();
  return process.ok() ? *std::move(process) : nullptr;
}

absl::Status SlurmCluster::StartMunge() {
  const std::string directory = directory_ + "/munge";
  mkdir(directory.c_str(), 0700);
  RETURN_IF_ERROR(CreateTokenFile(directory + "/key", RandomToken()));
  munged_ = Daemon({"/usr/sbin/munged", "--foreground", "--force", "--num-threads=2",
                    "--socket=" + directory_ + "/munge.sock", "--key-file=" + directory + "/key",
                    "--pid-file=" + directory + "/pid", "--seed-file=" + directory + "/seed"},
                   "munged.log");
  const absl::Time until = absl::Now() + kStartTimeout;
  while (munged_ != nullptr && absl::Now() < until && !munged_->Wait(kLook).has_value()) {
    if (access((directory_ + "/munge.sock").c_str(), F_OK) == 0) return absl::OkStatus();
  }
  return absl::InternalError("munged: " + ReadFileOrEmpty(directory_ + "/munged.log"));
}

absl::Status SlurmCluster::Start() {
  for (const char* program : {"/usr/sbin/munged", "/usr/sbin/slurmctld", "/usr/sbin/slurmd",
                              "/usr/bin/srun", "/usr/bin/sbatch"}) {
    if (!IsThere(program)) {
      return absl::NotFoundError(
          absl::StrCat("needs Debian's slurm-wlm and munge: there is no ", program));
    }
  }
  if (getpid() != 1) return absl::PermissionDeniedError("needs root, for process ids of its own");
  RETURN_IF_ERROR(NodeNetwork::Enter());
  // A short path, since slurmd keeps sockets there. munged wants no directory on the way to its own
  // that others may write to.
  directory_ = "/mnt";
  if (mount("none", directory_.c_str(), "tmpfs", 0, "size=512m,mode=0755") != 0) {
    return absl::ErrnoToStatus(errno, directory_);
  }
  for (int node = 1; node <= kNodes; ++node) RETURN_IF_ERROR(NodeNetwork::Add(node));
  RETURN_IF_ERROR(NodeNetwork::NameNodes({"node1", "node2"}));
  setenv("SLURM_CONF", WriteConfiguration().c_str(), 1);
  setenv("HOME", directory_.c_str(), 1);
  mkdir((directory_ + "/state").c_str(), 0700);
  RETURN_IF_ERROR(StartMunge());
  slurmctld_ = Daemon({"/usr/sbin/slurmctld", "-D", "-i"}, "slurmctld.out");
  for (int node = 1; node <= kNodes; ++node) StartSlurmd(node);
  const std::string state = AskUntil({"sinfo", "-h", "-o", "%t%D"}, "idle2", kStartTimeout);
  if (absl::StrContains(state, "idle2")) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "the cluster does not come up: ", state, ReadFileOrEmpty(directory_ + "/slurmctld.log"),
      ReadFileOrEmpty(directory_ + "/node1.out"), ReadFileOrEmpty(directory_ + "/node2.out")));
}

bool SlurmCluster::StartSlurmd(int node) {
  const std::string name = NodeNetwork::NameOf(node);
  mkdir(absl::StrCat(directory_, "/spool-", name).c_str(), 0755);
  std::vector<std::string> argv = NodeNetwork::Inside(node);
  // srun tells tasks the address of the host's name, so each node has its own.
  const std::string command =
      absl::StrCat("hostname ", name, "; exec /usr/sbin/slurmd -D -N ", name);
  for (const char* argument : {"unshare", "--uts", "sh", "-c", command.c_str()}) {
    argv.push_back(argument);
  }
  slurmd_[node - 1] = Daemon(argv, name + ".out");
  return slurmd_[node - 1] != nullptr;
}

void SlurmCluster::KillSlurmd(int node) {
  slurmd_[node - 1]->Kill(SIGKILL);
  slurmd_[node - 1]->Wait();
  slurmd_[node - 1].reset();
}

void SlurmCluster::KillNode(int node) {
  const std::string network = NetworkOf(absl::StrCat(slurmd_[node - 1]->pid()));
  ASSERT_FALSE(network.empty());
  // New ones may come while the old ones are killed.
  for (int round = 0; round < 3; ++round) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      pid_t pid = 0;
      if (absl::SimpleAtoi(name, &pid) && NetworkOf(name) == network) kill(pid, SIGKILL);
    }
  }
  slurmd_[node - 1]->Wait();
  slurmd_[node - 1].reset();
}

std::unique_ptr<Process> SlurmCluster::Run(const std::vector<std::string>& argv,
                                           std::map<std::string, std::string> env) {
  ProcessOptions options;
  options.argv = argv;
  options.env = std::move(env);
  options.working_dir = directory_;
  auto process = Process::Start(options);
  EXPECT_TRUE(process.ok()) << process.status();
  return process.ok() ? *std::move(process) : nullptr;
}

std::string SlurmCluster::Ask(const std::vector<std::string>& argv) {
  const std::unique_ptr<Process> process = Run(argv);
  if (process == nullptr) return "";
  process->Wait();
  return absl::StrCat(process->standard_output(), process->standard_error());
}

std::string SlurmCluster::AskUntil(const std::vector<std::string>& argv, absl::string_view text,
                                   absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  std::string answer;
  while (!absl::StrContains(answer = Ask(argv), text) && absl::Now() < until) {
    absl::SleepFor(kLook);
  }
  return answer;
}

}  // namespace cadre
