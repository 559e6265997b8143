#include "agent/cluster/allocation_launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "agent/cluster/slurm_launch.h"
#include "agent/workers/exit_report.h"
#include "base/bearer_token.h"
#include "base/exit_codes.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/token.h"
#include "rpc/node_memory.h"
#include "rpc/tls/pem_files.h"

namespace cadre::agent {
namespace {

// The variables that a launcher inherits from the agent; the user sets others in `env`.
constexpr const char* kInherited[] = {
    "PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CADRE_SUPERVISOR"};

// Limit of the processes and threads of an allocation, so that none exhausts the machine's.
constexpr uint32_t kMaxPids = 32768;

absl::Status Failed(const std::string& what) {
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", what));
}

std::string DirectoryOf(const LauncherOptions& options, uint64_t id) {
  return absl::StrCat(options.directory, "/part-", id);
}

// The directory for the sockets that workers connect to. In /tmp another user could have taken its
// name.
std::string RuntimeDirectory(const LauncherOptions& options, uint64_t id) {
  return DirectoryOf(options, id) + "/run";
}

absl::Status MakePrivate(const std::string& path, const UserEntry& user) {
  if (mkdir(path.c_str(), 0700) != 0) return Failed(path);
  if (user.uid != geteuid() && chown(path.c_str(), user.uid, user.gid) != 0) return Failed(path);
  return absl::OkStatus();
}

std::string VisibleDevices(const LauncherOptions& options, const std::vector<uint32_t>& gpus) {
  return absl::StrJoin(gpus, ",", [&](std::string* out, uint32_t index) {
    const auto found = options.gpus.find(index);
    absl::StrAppend(out, found == options.gpus.end() ? absl::StrCat(index) : found->second.name);
  });
}

// Only root can contain the processes of other users.
supervisor::Containment ContainmentOf(const LauncherOptions& options, const v1::StartPart& start,
                                      const UserEntry& user, const std::vector<uint32_t>& gpus) {
  supervisor::Containment containment;
  containment.asked = geteuid() == 0;
  if (!containment.asked) return containment;
  containment.uid = user.uid;
  containment.gid = user.gid;
  std::set<uint32_t> minors;
  for (const uint32_t index : gpus) {
    const auto found = options.gpus.find(index);
    minors.insert(found == options.gpus.end() ? index : found->second.minor);
  }
  containment.devices = DeviceRules(minors, FindGpuDevices());
  containment.max_pids = kMaxPids;
  containment.memory_bytes =
      rpc::JobMemory(start.spec().resources().memory_per_worker(), start.part().workers());
  return containment;
}

std::vector<std::string> EnvironmentOf(const LauncherOptions& options, const v1::StartPart& start,
                                       const UserEntry& user, const std::vector<uint32_t>& gpus) {
  // The launcher of a batch job's script waits for no other node.
  const std::string nodes =
      start.spec().has_batch() ? start.part().node() : absl::StrJoin(start.nodes(), ",");
  std::vector<std::string> environment = {
      absl::StrCat("HOME=", user.home),
      absl::StrCat("USER=", user.name),
      absl::StrCat("LOGNAME=", user.name),
      absl::StrCat("SHELL=", user.shell),
      absl::StrCat("XDG_RUNTIME_DIR=", RuntimeDirectory(options, start.part().id())),
      absl::StrCat("CADRE_CLUSTER_PART=", start.part().id()),
      absl::StrCat("CADRE_CLUSTER_NODE=", start.part().node()),
      absl::StrCat("CADRE_CLUSTER_NODES=", nodes)};
  if (start.job_id() != 0) environment.push_back(absl::StrCat("CADRE_JOB_ID=", start.job_id()));
  for (const char* name : kInherited) {
    const auto found = options.environment.find(name);
    if (found != options.environment.end()) {
      environment.push_back(absl::StrCat(name, "=", found->second));
    }
  }
  if (options.has_gpus) {
    environment.push_back(absl::StrCat("CUDA_VISIBLE_DEVICES=", VisibleDevices(options, gpus)));
  }
  return environment;
}

}  // namespace

RetiredDirectory RetireDirectory(const LauncherOptions& options, uint64_t id) {
  RetiredDirectory retired;
  struct stat info;
  if (lstat(RuntimeDirectory(options, id).c_str(), &info) == 0) retired.uid = info.st_uid;
  const std::string path =
      absl::StrCat(options.directory, "/gone-", id, "-", RandomToken().substr(0, 16));
  if (rename(DirectoryOf(options, id).c_str(), path.c_str()) == 0) retired.path = path;
  return retired;
}

absl::Status WritePrivate(const std::string& path, absl::string_view content, const UserEntry& user,
                          mode_t mode) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
  if (fd < 0) return Failed(path);
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t wrote = write(fd, content.data() + done, content.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) break;
    done += wrote;
  }
  absl::Status status;
  if (done < content.size()) status = Failed(path);
  if (status.ok() && user.uid != geteuid() && fchown(fd, user.uid, user.gid) != 0) {
    status = Failed(path);
  }
  close(fd);
  return status;
}

absl::StatusOr<supervisor::StartFrame> PrepareLauncher(const LauncherOptions& options,
                                                       const v1::StartPart& start,
                                                       const std::vector<uint32_t>& gpus,
                                                       uint64_t server_id) {
  ASSIGN_OR_RETURN(const UserEntry user, FindUser(start.user()));
  const bool other = user.uid != geteuid();
  if (other && geteuid() != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("this agent does not run as root and cannot run jobs of user ", user.name));
  }
  if (user.uid == 0 && !options.root_too) {
    return absl::PermissionDeniedError(
        "this agent does not run jobs of root; submit the job as another user, or start the agent "
        "with --user "
        "root");
  }
  const std::string directory = DirectoryOf(options, start.part().id());
  if (mkdir(directory.c_str(), 0700) != 0) return Failed(directory);
  const std::string spec = directory + "/job.binpb";
  const std::string token = absl::StrCat(directory, "/", kLauncherToken);
  v1::JobSpec job = start.spec();
  if (IsOfSlurm(start)) {
    ASSIGN_OR_RETURN(job, PrepareSlurmSpec(options, start, gpus, server_id, user, directory));
  }
  RETURN_IF_ERROR(WritePrivate(spec, job.SerializeAsString(), user));
  // The agent's own token would make its user the cluster's administrator.
  RETURN_IF_ERROR(WritePrivate(token,
                               absl::StrCat(PartToken(options.token->Current(), server_id,
                                                      start.part().id(), start.part().job()),
                                            "\n"),
                               user));
  // Only the CA is copied, because with the agent's key the user could impersonate this node.
  if (!options.tls_dir.empty()) {
    ASSIGN_OR_RETURN(const rpc::PemFiles files, rpc::ReadPemFiles(options.tls_dir, /*own=*/false));
    RETURN_IF_ERROR(WritePrivate(absl::StrCat(directory, "/", kLauncherCa), files.ca, user));
  }
  RETURN_IF_ERROR(MakePrivate(RuntimeDirectory(options, start.part().id()), user));
  // The user's launcher can open its files there, but not add others beside them.
  if (other && chmod(directory.c_str(), 0711) != 0) return Failed(directory);
  supervisor::StartFrame frame;
  frame.working_dir = "/";
  // The workers' output goes to their log files.
  frame.forward_stdout = frame.forward_stderr = false;
  if (other) {
    frame.argv = {"setpriv",
                  absl::StrCat("--reuid=", user.uid),
                  absl::StrCat("--regid=", user.gid),
                  "--init-groups",
                  "--pdeathsig=KILL",
                  "--"};
  }
  for (const std::string& word :
       {options.launcher, std::string("run"), absl::StrCat("--spec=", spec),
        absl::StrCat("--rdzv-endpoint=", options.server), absl::StrCat("--token-file=", token),
        absl::StrCat("--node-name=", start.part().node()),
        absl::StrCat("--nproc-per-node=", start.spec().has_batch() ? 1 : start.part().workers()),
        std::string("--redirects=3"), std::string("--no-progress")}) {
    frame.argv.push_back(word);
  }
  if (!options.tls_dir.empty()) frame.argv.push_back(absl::StrCat("--tls-dir=", directory));
  if (options.insecure) frame.argv.push_back("--insecure");
  if (!options.local_addr.empty()) {
    frame.argv.push_back(absl::StrCat("--local-addr=", options.local_addr));
  }
  frame.environment = EnvironmentOf(options, start, user, gpus);
  frame.containment = ContainmentOf(options, start, user, gpus);
  return frame;
}

namespace {

constexpr std::chrono::seconds kInterval(1);
// Checks from one look at the users' tokens to the next.
constexpr uint64_t kUserTokenChecks = 60;
constexpr size_t kFileBytesMax = 1 << 20;

}  // namespace

std::optional<GivenFile> ReadGivenFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  GivenFile file;
  struct stat info;
  if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) {
    file.owner.uid = info.st_uid;
    file.owner.gid = info.st_gid;
    char block[4096];
    ssize_t got = 0;
    while (file.content.size() < kFileBytesMax && (got = read(fd, block, sizeof(block))) > 0) {
      file.content.append(block, static_cast<size_t>(got));
    }
  }
  close(fd);
  return file;
}

bool ReplaceGivenFile(const std::string& path, const GivenFile& file) {
  const std::string fresh = path + ".new";
  unlink(fresh.c_str());
  if (WritePrivate(fresh, file.content, file.owner).ok() &&
      rename(fresh.c_str(), path.c_str()) == 0) {
    return true;
  }
  unlink(fresh.c_str());
  return false;
}

CredentialRenewal::CredentialRenewal(LauncherOptions options,
                                     std::function<void(const std::string&)> log)
    : options_(std::move(options)), log_(std::move(log)), token_(options_.token->Current()) {}

void CredentialRenewal::Start() {
  thread_.emplace(kInterval, [this] { RenewOnce(); });
}

void CredentialRenewal::RenewOnce(absl::Time now) {
  const std::string token = options_.token->Current();
  if (token != token_) former_.push_back(std::exchange(token_, token));
  // An allocation that starts while the token is replaced may have got a user's token made from the
  // former one.
  const bool user_tokens = checks_++ % kUserTokenChecks == 0 || !former_.empty();
  std::string ca;
  if (!options_.tls_dir.empty()) {
    const auto files = files_.ResultWithin(kFileTaskHungAfter, [dir = options_.tls_dir] {
      return rpc::ReadPemFiles(dir, /*own=*/false);
    });
    if (files.has_value() && files->ok()) ca = (*files)->ca;
  }
  if (!user_tokens && ca.empty()) return;
  size_t renewed = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(options_.directory, error)) {
    if (!absl::StartsWith(entry.path().filename().string(), "part-")) continue;
    if (RenewToken(entry.path().string())) ++renewed;
    if (user_tokens) RenewUserToken(entry.path().string(), token_, now);
    const std::string path = absl::StrCat(entry.path().string(), "/", kLauncherCa);
    std::optional<GivenFile> given = ca.empty() ? std::nullopt : ReadGivenFile(path);
    if (!given.has_value() || given->content == ca) continue;
    given->content = ca;
    // If that fails, the next check tries again.
    ReplaceGivenFile(path, *given);
  }
  if (renewed > 0 && log_) {
    log_(absl::StrCat("the token was replaced: ", Count(renewed, "launcher"),
                      " on this node got a new one as well"));
  }
}

bool CredentialRenewal::RenewToken(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kLauncherToken);
  std::optional<GivenFile> given = former_.empty() ? std::nullopt : ReadGivenFile(path);
  if (!given.has_value()) return false;
  const absl::string_view text = absl::StripSuffix(given->content, "\n");
  for (const std::string& secret : former_) {
    // Only a token that this agent has signed is replaced, not other content of the file.
    const std::optional<Bearer> bearer = VerifiedBearer(secret, text);
    if (!bearer.has_value() || bearer->kind != Bearer::Kind::kPart) continue;
    given->content =
        absl::StrCat(PartToken(token_, bearer->server_id, bearer->part, bearer->job), "\n");
    return ReplaceGivenFile(path, *given);
  }
  return false;
}

namespace {

v1::PartBlame BlameFor(const supervisor::ExitedFrame& exited) {
  if (exited.exec_errno != 0) {
    return BlameForUnstarted(absl::ErrnoToStatusCode(static_cast<int>(exited.exec_errno)));
  }
  if (exited.signal != 0) return v1::BLAME_NODE;
  switch (exited.exit_code) {
    case kExitUsage:
    case kExitBadSpec:
      return v1::BLAME_JOB;
    case kExitTryLater:
      return v1::BLAME_NOBODY;
    default:
      return v1::BLAME_NODE;
  }
}

// The last line that the launcher wrote; may be empty.
absl::string_view LastLine(const supervisor::ExitedFrame& exited) {
  const std::vector<absl::string_view> lines =
      absl::StrSplit(exited.last_lines, '\n', absl::SkipWhitespace());
  return lines.empty() ? "" : absl::StripPrefix(lines.back(), "cadre: ");
}

}  // namespace

v1::PartBlame BlameForUnstarted(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return v1::BLAME_NOBODY;
    default:
      return v1::BLAME_NODE;
  }
}

v1::PartReport DescribeLauncherEnd(const supervisor::ExitedFrame& exited) {
  v1::PartReport report;
  report.set_blame(BlameFor(exited));
  const std::string how = HowItEnded(exited);
  const absl::string_view line = LastLine(exited);
  if (line.empty() || exited.exec_errno != 0) {
    report.set_text(how);
  } else if (exited.signal != 0) {
    // Its last line is not the reason for a signal.
    report.set_text(absl::StrCat(how, "; it wrote last: ", line));
  } else {
    report.set_text(absl::StrCat(line, " (", how, ")"));
  }
  return report;
}

}  // namespace cadre::agent
