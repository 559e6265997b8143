#include "agent/supervisor/warm/template_process.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "agent/supervisor/processes/child.h"
#include "agent/supervisor/processes/spawn.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"

namespace cadre::supervisor {
namespace {

constexpr int kSocketBytes = 1 << 20;
constexpr size_t kWorkerDescriptors = 5;
// A worker's marker is written over the template's, which therefore is longer than any.
constexpr size_t kMarkerRoom = 20;
// Set to nothing it is as good as not set; an empty entry of one that is set is the working
// directory.
constexpr absl::string_view kPathVariable = "PYTHONPATH=";

absl::string_view NameIn(absl::string_view entry) { return entry.substr(0, entry.find('=')); }

Spawned SpawnTemplate(State& state, const WarmProgram& program, uint64_t serial, int socket,
                      int complaints) {
  StartFrame start;
  start.argv = program.start.argv;
  start.working_dir = program.start.working_dir;
  const auto& ranks = program.start.warm.rank_variables;
  start.environment = WithHook(program.start, "template", {ranks.begin(), ranks.end()});
  absl::StrAppend(&start.environment.back(), ":", kStandbyFd);
  const ScopedFd cgroup = state.cgroups.Add(serial);
  SpawnRequest request;
  request.start = &start;
  request.marker = absl::StrCat(state.MarkerOf(serial), ".template", std::string(kMarkerRoom, '.'));
  request.stdin_fd = state.null_device.get();
  request.stdout_fd = complaints;
  request.stderr_fd = complaints;
  request.progress_fd = state.null_device.get();
  request.standby_fd = socket;
  request.cgroup_fd = cgroup.get();
  request.descriptors = state.descriptors;
  return Spawn(request);
}

}  // namespace

std::string HookDirectory(const StartFrame& start) { return start.warm.directory + "/python"; }

std::vector<std::string> WithHook(const StartFrame& start, const std::string& purpose,
                                  const std::set<absl::string_view>& without) {
  const std::string hook = HookDirectory(start);
  std::vector<std::string> environment;
  bool had_path = false;
  for (const std::string& entry : start.environment) {
    if (without.count(NameIn(entry)) != 0 || NameIn(entry) == "CADRE_WARM_START") continue;
    const bool is_path = absl::StartsWith(entry, kPathVariable);
    had_path = had_path || is_path;
    environment.push_back(
        is_path ? absl::StrCat("PYTHONPATH=", hook, entry.size() > kPathVariable.size() ? ":" : "",
                               absl::string_view(entry).substr(kPathVariable.size()))
                : entry);
  }
  if (!had_path) environment.push_back(absl::StrCat(kPathVariable, hook));
  environment.push_back(absl::StrCat("CADRE_WARM_START=", purpose, ":", had_path ? "1" : "0"));
  return environment;
}

absl::StatusOr<Template> StartTemplateProcess(State& state, const WarmProgram& program) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::InternalError(absl::StrCat("socketpair: ", strerror(errno)));
  }
  Template made;
  made.socket.Reset(ends[0]);
  const ScopedFd theirs(ends[1]);
  setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &kSocketBytes, sizeof(kSocketBytes));
  WorkerPipe complaints = MakeWorkerPipe();
  made.serial = state.next_serial++;
  Spawned spawned =
      SpawnTemplate(state, program, made.serial, theirs.get(), complaints.write_end.get());
  if (spawned.pid <= 0) {
    return absl::InternalError(absl::StrCat(spawned.failed_step, ": ", strerror(spawned.error)));
  }
  made.pid = spawned.pid;
  made.pidfd = std::move(spawned.pidfd);
  made.complaints = std::move(complaints.read_end);
  return made;
}

absl::Status SendImports(const WarmProgram& program, const Template& to) {
  const WarmOptions& options = program.start.warm;
  ASSIGN_OR_RETURN(
      const std::string order,
      Encode(ImportOrder{options.module, options.script, program.learned, options.preload,
                         program.refused, options.rank_variables, program.learner_environment}));
  if (send(to.socket.get(), order.data(), order.size(), MSG_NOSIGNAL) >= 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, "the template cannot be asked");
}

absl::Status SendFork(const Template& to, const ForkOrder& order, int standard_input,
                      const Plumbing& plumbing, int go) {
  ASSIGN_OR_RETURN(std::string message, Encode(order));
  iovec bytes = {&message[0], message.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kWorkerDescriptors * sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  cmsghdr* rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(kWorkerDescriptors * sizeof(int));
  const std::array<int, kWorkerDescriptors> descriptors = {
      standard_input, plumbing.standard_output.write_end.get(),
      plumbing.standard_error.write_end.get(), plumbing.progress.write_end.get(), go};
  memcpy(CMSG_DATA(rights), descriptors.data(), sizeof(descriptors));
  if (sendmsg(to.socket.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, "the template cannot be asked");
}

std::string LastLine(const Template& ended) {
  char text[4096];
  const ssize_t n = read(ended.complaints.get(), text, sizeof(text));
  absl::string_view rest(text, n > 0 ? static_cast<size_t>(n) : 0);
  while (absl::ConsumeSuffix(&rest, "\n")) {
  }
  return std::string(rest.substr(rest.rfind('\n') + 1).substr(0, 300));
}

}  // namespace cadre::supervisor
