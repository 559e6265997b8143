#include "agent/cluster/part_start.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/bearer_token.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/token.h"
#include "rpc/tls/pem_files.h"

namespace cadre::agent {
namespace {

// What a launcher gets of the agent's environment; the user says the rest in `env`.
constexpr const char* kInherited[] = {
    "PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CADRE_SUPERVISOR"};

// Beside the workers: the launcher with the job's store, its supervisor, and the process from which
// workers of a Python program are started again.
constexpr uint64_t kLauncherMemory = uint64_t{1} << 30;
// Processes and threads of a part, so that none takes all of the machine's.
constexpr uint32_t kMaxPids = 32768;

// Of a user's entry, its texts.
constexpr size_t kEntryBytes = 64 << 10;

absl::Status Failed(const std::string& what) {
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", what));
}

absl::StatusOr<UserEntry> EntryOf(const passwd* found, const std::string& name) {
  if (found == nullptr) {
    return absl::NotFoundError(absl::StrCat("this machine has no user ", name));
  }
  return UserEntry{found->pw_name, found->pw_uid, found->pw_gid, found->pw_dir, found->pw_shell};
}

std::string PartDirectory(const PartStartOptions& options, uint64_t id) {
  return absl::StrCat(options.directory, "/part-", id);
}

// Where the launcher puts what its workers connect to. In /tmp others could have taken its name.
std::string RuntimeDirectory(const PartStartOptions& options, uint64_t id) {
  return PartDirectory(options, id) + "/run";
}

absl::Status MakePrivate(const std::string& path, const UserEntry& user) {
  if (mkdir(path.c_str(), 0700) != 0) return Failed(path);
  if (user.uid != geteuid() && chown(path.c_str(), user.uid, user.gid) != 0) return Failed(path);
  return absl::OkStatus();
}

std::string VisibleDevices(const PartStartOptions& options, const std::vector<uint32_t>& gpus) {
  return absl::StrJoin(gpus, ",", [&](std::string* out, uint32_t index) {
    const auto found = options.gpus.find(index);
    absl::StrAppend(out, found == options.gpus.end() ? absl::StrCat(index) : found->second.name);
  });
}

// 0: none was asked for. What is no number of the kernel's is more than any machine has.
uint64_t MemoryLimit(uint64_t each, uint64_t workers) {
  if (each == 0) return 0;
  if (each > (INT64_MAX - kLauncherMemory) / std::max<uint64_t>(workers, 1)) return 0;
  return each * workers + kLauncherMemory;
}

// Only root may hold others to anything.
supervisor::Containment ContainmentOf(const PartStartOptions& options, const v1::StartPart& part,
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
      MemoryLimit(part.spec().resources().memory_per_worker(), part.part().workers());
  return containment;
}

std::vector<std::string> EnvironmentOf(const PartStartOptions& options, const v1::StartPart& part,
                                       const UserEntry& user, const std::vector<uint32_t>& gpus) {
  std::vector<std::string> environment = {
      absl::StrCat("HOME=", user.home),
      absl::StrCat("USER=", user.name),
      absl::StrCat("LOGNAME=", user.name),
      absl::StrCat("SHELL=", user.shell),
      absl::StrCat("XDG_RUNTIME_DIR=", RuntimeDirectory(options, part.part().id())),
      absl::StrCat("CADRE_CLUSTER_PART=", part.part().id()),
      absl::StrCat("CADRE_CLUSTER_NODE=", part.part().node()),
      absl::StrCat("CADRE_CLUSTER_NODES=", absl::StrJoin(part.nodes(), ","))};
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

absl::StatusOr<UserEntry> FindUser(const std::string& name) {
  // libc passes over a database for which there is no descriptor, as if nobody were in it.
  const int spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (spare < 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot look user ", name, " up: ", ErrnoText(errno)));
  }
  close(spare);
  std::vector<char> text(kEntryBytes);
  passwd entry = {};
  passwd* found = nullptr;
  // Also in several threads at once.
  const int error = getpwnam_r(name.c_str(), &entry, text.data(), text.size(), &found);
  // With these databases say that there is none; others, that they could not find out.
  if (found == nullptr && error != 0 && error != ENOENT && error != ESRCH) {
    return absl::UnavailableError(
        absl::StrCat("cannot look user ", name, " up: ", ErrnoText(error)));
  }
  return EntryOf(found, name);
}

absl::StatusOr<UserEntry> ThisUser() {
  return EntryOf(getpwuid(geteuid()), absl::StrCat(geteuid()));
}

AsidePart SetAsidePart(const PartStartOptions& options, uint64_t id) {
  AsidePart aside;
  struct stat info;
  if (lstat(RuntimeDirectory(options, id).c_str(), &info) == 0) aside.uid = info.st_uid;
  const std::string path =
      absl::StrCat(options.directory, "/gone-", id, "-", RandomToken().substr(0, 16));
  if (rename(PartDirectory(options, id).c_str(), path.c_str()) == 0) aside.path = path;
  return aside;
}

absl::Status WritePrivate(const std::string& path, absl::string_view content,
                          const UserEntry& user) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
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

absl::StatusOr<supervisor::StartFrame> PreparePart(const PartStartOptions& options,
                                                   const v1::StartPart& part,
                                                   const std::vector<uint32_t>& gpus,
                                                   uint64_t server_id) {
  ASSIGN_OR_RETURN(const UserEntry user, FindUser(part.user()));
  const bool other = user.uid != geteuid();
  if (other && geteuid() != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("this agent is not root's and cannot run jobs of user ", user.name));
  }
  if (user.uid == 0 && !options.root_too) {
    return absl::PermissionDeniedError(
        "jobs of root are not run here; submit it as another user, or start the agent with --user "
        "root");
  }
  const std::string directory = PartDirectory(options, part.part().id());
  if (mkdir(directory.c_str(), 0700) != 0) return Failed(directory);
  const std::string spec = directory + "/job.binpb";
  const std::string token = absl::StrCat(directory, "/", kPartToken);
  RETURN_IF_ERROR(WritePrivate(spec, part.spec().SerializeAsString(), user));
  // The agent's own token would make its user the cluster's administrator.
  RETURN_IF_ERROR(WritePrivate(token,
                               absl::StrCat(PartToken(options.token->Current(), server_id,
                                                      part.part().id(), part.part().job()),
                                            "\n"),
                               user));
  // The agent's key would let its user pose as this node.
  if (!options.tls_dir.empty()) {
    ASSIGN_OR_RETURN(const rpc::PemFiles files, rpc::ReadPemFiles(options.tls_dir, /*own=*/false));
    RETURN_IF_ERROR(WritePrivate(absl::StrCat(directory, "/", kPartCa), files.ca, user));
  }
  RETURN_IF_ERROR(MakePrivate(RuntimeDirectory(options, part.part().id()), user));
  // The user's launcher finds its files there, and cannot add any beside them.
  if (other && chmod(directory.c_str(), 0711) != 0) return Failed(directory);
  supervisor::StartFrame frame;
  frame.working_dir = "/";
  // Its workers' output is in their log files.
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
        absl::StrCat("--node-name=", part.part().node()),
        absl::StrCat("--nproc-per-node=", part.part().workers()), std::string("--redirects=3"),
        std::string("--no-progress")}) {
    frame.argv.push_back(word);
  }
  if (!options.tls_dir.empty()) frame.argv.push_back(absl::StrCat("--tls-dir=", directory));
  if (options.insecure) frame.argv.push_back("--insecure");
  if (!options.local_addr.empty()) {
    frame.argv.push_back(absl::StrCat("--local-addr=", options.local_addr));
  }
  frame.environment = EnvironmentOf(options, part, user, gpus);
  frame.containment = ContainmentOf(options, part, user, gpus);
  return frame;
}

}  // namespace cadre::agent
