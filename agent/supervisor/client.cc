// The agent's side: starting and adopting a supervisor, and cleaning up after a dead one.
#include "agent/supervisor/client.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <iterator>
#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "agent/supervisor/processes/cgroups.h"
#include "agent/supervisor/processes/pidfd.h"
#include "agent/supervisor/processes/process_scan.h"
#include "base/clock.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"

extern char** environ;

namespace cadre::supervisor {
namespace {

constexpr int kSupervisorFd = 3;
constexpr size_t kMaxQueuedBytes = 16 << 20;
// The most that one call of Read() reads, so that a worker with much output does not block the
// caller.
constexpr size_t kMaxReadBytes = 4 << 20;
constexpr size_t kChunkBytes = 256 << 10;
// More room in the kernel means fewer turns of both loops; a failure to set it does not matter.
constexpr int kSocketBytes = 1 << 20;
constexpr absl::Duration kExitLimit = absl::Seconds(2);
constexpr absl::Duration kEndLimit = absl::Milliseconds(200);
constexpr absl::Duration kLeftoversLimit = absl::Seconds(1);
constexpr int kAdoptPollMs = 20;

std::string FindSupervisor() {
  const char* given = getenv("CADRE_SUPERVISOR");
  if (given != nullptr && *given != '\0') return given;
  char path[4096];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof(path));
  const std::string self(path, n > 0 ? static_cast<size_t>(n) : 0);
  return absl::StrCat(self.substr(0, self.rfind('/') + 1), "cadre-supervisor");
}

// An id for this supervisor's cgroup and the marker of its workers. It is not secret, but differs
// from that of any other supervisor, even in other pid namespaces.
absl::StatusOr<std::string> MakeId() {
  char bytes[8];
  if (getrandom(bytes, sizeof(bytes), 0) != static_cast<ssize_t>(sizeof(bytes))) {
    return absl::InternalError(absl::StrCat("getrandom: ", strerror(errno)));
  }
  return absl::BytesToHexString(absl::string_view(bytes, sizeof(bytes)));
}

// The supervisor gets its own session, so that Ctrl-C on the terminal reaches neither it nor the
// workers.
int SpawnSupervisor(const std::string& path, const std::string& id, uint32_t frames_version,
                    int socket, pid_t* pid) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  // If the socket is already descriptor 3, dup2 clears its close-on-exec flag too.
  posix_spawn_file_actions_adddup2(&files, socket, kSupervisorFd);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addclosefrom_np(&files, kSupervisorFd + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  sigfillset(&signals);
  posix_spawnattr_setsigdefault(&attributes, &signals);
  const std::string frames = absl::StrCat(frames_version);
  char* const argv[] = {const_cast<char*>("cadre-supervisor"), const_cast<char*>(id.c_str()),
                        const_cast<char*>(frames.c_str()), nullptr};
  const int error = posix_spawn(pid, path.c_str(), &files, &attributes, argv, environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return error;
}

// On failure not ok(), and errno is set.
ScopedFd ConnectTo(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  ScopedFd socket_fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  errno = ENAMETOOLONG;
  if (path.size() >= sizeof(address.sun_path)) return ScopedFd();
  memcpy(address.sun_path, path.data(), path.size());
  const bool connected =
      connect(socket_fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  return connected ? std::move(socket_fd) : ScopedFd();
}

}  // namespace

struct Client::State {
  uint32_t frames_version = kFramesVersion;
  pid_t pid = 0;
  ScopedFd pidfd;
  ScopedFd socket;
  frames::FrameReader reader{kMaxFrameBytes};
  std::string queue;
  size_t written = 0;
  MonoTime progress_at;  // when some of the queue was last sent, or the queue became non-empty
  Leftovers leftovers;   // for the case that it dies
  bool gone = false;
  siginfo_t end = {};  // of the supervisor, if it is this process's child
  std::string how;     // how it ended, once it is gone

  // Waits until `end`. Returns true if the supervisor has accepted this agent.
  bool AwaitAdoption(MonoTime end, AdoptedFrame* inventory);
  absl::Status ReadSocket(bool* closed);
  absl::Status OnSupervisorLost(absl::string_view why);
  bool WaitForSupervisor(absl::Duration limit) const;
  bool ReapSupervisor();
  // A description; call after ReapSupervisor.
  std::string HowItEnded() const;
};

Client::Client(std::unique_ptr<State> state) : state_(std::move(state)) {}

absl::StatusOr<std::unique_ptr<Client>> Client::Start(uint32_t frames_version) {
  auto state = std::make_unique<State>();
  state->frames_version = frames_version;
  const std::string path = FindSupervisor();
  ASSIGN_OR_RETURN(state->leftovers.supervisor_id, MakeId());
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "socketpair: ", strerror(errno),
        errno == EMFILE ? "; raise the limit of open files (ulimit -n), 64 is the least" : ""));
  }
  state->socket.Reset(ends[0]);
  ScopedFd theirs(ends[1]);
  for (const int end : ends) {
    setsockopt(end, SOL_SOCKET, SO_SNDBUF, &kSocketBytes, sizeof(kSocketBytes));
  }
  // If the supervisor dies, its processes are reparented to this process and can be found.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const int error = SpawnSupervisor(path, state->leftovers.supervisor_id, frames_version,
                                    theirs.get(), &state->pid);
  if (error != 0) {
    // The file exists and is executable, so it is starting a process that is refused.
    const bool refused = (error == EPERM || error == ENOSYS) && access(path.c_str(), X_OK) == 0;
    const char* const given = getenv("CADRE_SUPERVISOR");
    const bool is_given = given != nullptr && path == given;
    const std::string message = absl::StrCat(
        path, ": ", strerror(error),
        refused ? "; the file may be executed, but no process may be started here: the seccomp "
                  "profile of this container forbids clone3 or exec; run it with a newer container "
                  "runtime or another profile"
        : error == EAGAIN || error == ENOMEM
            ? "; raise the limit of processes (ulimit -u, or the container's pids.max) or memory"
        : is_given
            ? "; CADRE_SUPERVISOR must name the program cadre-supervisor; if it is unset, the "
              "one beside this program is started"
            : "; install cadre-supervisor beside this program or set CADRE_SUPERVISOR");
    if (error == EAGAIN || error == ENOMEM || error == EMFILE || error == ENFILE) {
      return absl::ResourceExhaustedError(message);
    }
    return error == ENOENT ? absl::NotFoundError(message) : absl::FailedPreconditionError(message);
  }
  state->pidfd.Reset(OpenPidfd(state->pid));
  return std::unique_ptr<Client>(new Client(std::move(state)));
}

bool Client::State::AwaitAdoption(MonoTime end, AdoptedFrame* inventory) {
  for (;;) {
    auto next = NextFrame(reader, frames_version);
    if (!next.ok()) return false;
    if (!next->has_value()) {
      const absl::Duration left = end - MonoNow();
      pollfd ready = {socket.get(), POLLIN, 0};
      if (left <= absl::ZeroDuration() ||
          poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1) <= 0) {
        return false;
      }
      bool closed = false;
      if (!ReadSocket(&closed).ok() || closed) return false;
      continue;
    }
    leftovers.OnFrame(**next);
    if (const auto* ready = std::get_if<ReadyFrame>(&**next)) pid = ready->pid;
    if (const auto* adopted = std::get_if<AdoptedFrame>(&**next)) {
      *inventory = *adopted;
      return true;
    }
  }
}

absl::StatusOr<std::unique_ptr<Client>> Client::Adopt(const std::string& path,
                                                      const std::string& token,
                                                      uint32_t frames_version,
                                                      AdoptedFrame* inventory,
                                                      absl::Duration limit) {
  const MonoTime end = MonoNow() + limit;
  // Retries if it was dropped: another agent may have connected at the same moment.
  for (; MonoNow() < end; poll(nullptr, 0, kAdoptPollMs)) {
    auto state = std::make_unique<State>();
    state->frames_version = frames_version;
    state->socket = ConnectTo(path);
    if (!state->socket.ok()) {
      return absl::NotFoundError(absl::StrCat("no supervisor at ", path, ": ", strerror(errno)));
    }
    const std::string hello = EncodeFrame(AdoptFrame{token}, frames_version);
    send(state->socket.get(), hello.data(), hello.size(), MSG_NOSIGNAL);
    if (!state->AwaitAdoption(end, inventory)) continue;
    state->leftovers.supervisor_id = inventory->id;
    state->pidfd.Reset(OpenPidfd(state->pid));
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    return std::unique_ptr<Client>(new Client(std::move(state)));
  }
  return absl::UnavailableError(absl::StrCat("the workers of the supervisor at ", path,
                                             " cannot be adopted: their launcher still runs"));
}

Client::~Client() {
  if (state_->gone) return;
  Send(GoodbyeFrame{}).IgnoreError();
  // Half-close: the supervisor's last frames can still be read if it does not exit cleanly.
  shutdown(state_->socket.get(), SHUT_WR);
  if (!state_->WaitForSupervisor(kExitLimit)) SignalPidfd(state_->pidfd.get(), SIGKILL);
  if (state_->ReapSupervisor()) return;
  for (auto frames = Read(); frames.ok() && !frames->empty(); frames = Read()) {
  }
}

void Client::Release() {
  state_->gone = true;
  state_->socket.Reset();
}

int Client::fd() const { return state_->socket.get(); }
bool Client::WantsWrite() const { return state_->written < state_->queue.size(); }
pid_t Client::pid() const { return state_->pid; }
uint32_t Client::frames_version() const { return state_->frames_version; }
const Leftovers& Client::leftovers() const { return state_->leftovers; }

std::string Client::ContinueIfStopped() {
  const auto process = InspectProcess(state_->pid);
  // 't' (stopped by a debugger) is left alone.
  if (state_->gone || !process.has_value() || process->state != 'T') return "";
  if (SignalPidfd(state_->pidfd.get(), SIGCONT) != 0) return "";
  return absl::StrCat("cadre-supervisor, pid ", state_->pid,
                      ", was stopped by a signal and has been continued");
}

absl::Status Client::Send(const Frame& frame, MonoTime now) {
  const std::string bytes = EncodeFrame(frame, state_->frames_version);
  if (bytes.empty()) return absl::OkStatus();
  if (bytes.size() - sizeof(uint32_t) > kMaxFrameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("command and environment take ", bytes.size(),
                                                   " bytes; at most ", kMaxFrameBytes, " fit"));
  }
  // The supervisor may have read since the last flush.
  RETURN_IF_ERROR(Flush(now));
  State& s = *state_;
  if (!WantsWrite()) s.progress_at = now;
  if (s.queue.size() - s.written + bytes.size() > kMaxQueuedBytes &&
      now - s.progress_at >= kSupervisorStallTimeout) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the supervisor, pid ", s.pid, ", does not read its socket: over ", kMaxQueuedBytes,
        " bytes have been queued for ", absl::FormatDuration(now - s.progress_at)));
  }
  s.queue += bytes;
  return Flush(now);
}

absl::Status Client::Flush(MonoTime now) {
  State& s = *state_;
  while (WantsWrite()) {
    const ssize_t n = send(s.socket.get(), s.queue.data() + s.written, s.queue.size() - s.written,
                           MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return absl::OkStatus();
    if (n < 0) {
      // Read() finds out how it ended and cleans up.
      return absl::UnavailableError(
          absl::StrCat("the supervisor, pid ", s.pid, ", is gone: ", strerror(errno)));
    }
    s.written += static_cast<size_t>(n);
    s.progress_at = now;
  }
  s.queue.clear();
  s.written = 0;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Frame>> Client::Read() {
  State& s = *state_;
  if (s.gone) return s.OnSupervisorLost("");
  bool closed = false;
  const absl::Status read = s.ReadSocket(&closed);
  std::vector<Frame> frames;
  for (;;) {
    auto next = NextFrame(s.reader, s.frames_version);
    if (!next.ok()) return s.OnSupervisorLost(next.status().message());
    if (!next->has_value()) break;
    s.leftovers.OnFrame(**next);
    frames.push_back(*std::move(*next));
  }
  // Frames sent before the end are returned first; the end is found again by the next call.
  if (!frames.empty()) return frames;
  if (!read.ok()) return s.OnSupervisorLost(read.message());
  if (closed) return s.OnSupervisorLost("it closed its socket");
  return frames;
}

absl::Status Client::State::ReadSocket(bool* closed) {
  // Not zero-initialised, because mostly only a few bytes are used.
  const std::unique_ptr<char[]> chunk(new char[kChunkBytes]);
  for (size_t total = 0; total < kMaxReadBytes;) {
    const ssize_t n = recv(socket.get(), chunk.get(), kChunkBytes, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (n < 0) return absl::UnavailableError(strerror(errno));
    *closed = n == 0;
    if (n == 0) break;
    reader.Append(absl::string_view(chunk.get(), static_cast<size_t>(n)));
    total += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::Status Client::State::OnSupervisorLost(absl::string_view why) {
  if (!gone) {
    gone = true;
    // A supervisor that closes its socket because it exits is gone in a moment. One that is still
    // alive after that is killed: two supervisors for the same workers would be worse.
    const bool ended = WaitForSupervisor(kEndLimit);
    if (!ended) SignalPidfd(pidfd.get(), SIGKILL);
    ReapSupervisor();
    how = ended ? HowItEnded() : absl::StrCat("was killed because ", why);
    KillLeftovers(leftovers, kLeftoversLimit);
  }
  return absl::UnavailableError(absl::StrCat("cadre-supervisor, pid ", pid, ", ", how));
}

std::string Client::State::HowItEnded() const {
  if (end.si_code == CLD_EXITED) return absl::StrCat("exited with status ", end.si_status);
  if (end.si_code != CLD_KILLED && end.si_code != CLD_DUMPED) return "has ended";
  // The sender of the signal cannot be found out.
  return absl::StrCat("was killed by signal ", end.si_status,
                      end.si_status == SIGKILL
                          ? " (by another process, or by the kernel because memory ran out)"
                          : "");
}

bool Client::State::WaitForSupervisor(absl::Duration limit) const {
  const MonoTime end = MonoNow() + limit;
  for (MonoTime now = MonoNow(); now < end; now = MonoNow()) {
    pollfd exit = {pidfd.get(), POLLIN, 0};
    const int n = poll(&exit, 1, static_cast<int>(absl::ToInt64Milliseconds(end - now)) + 1);
    if (n > 0) return true;
  }
  return false;
}

// Call only after the supervisor has ended or was killed; one that SIGKILL does not end is left.
// Returns true if it exited by itself with status 0, which means that none of its workers'
// processes is left.
bool Client::State::ReapSupervisor() {
  if (!WaitForSupervisor(kExitLimit)) return false;
  return waitid(P_PID, static_cast<id_t>(pid), &end, WEXITED | WNOHANG) == 0 &&
         end.si_code == CLD_EXITED && end.si_status == 0;
}

}  // namespace cadre::supervisor

namespace cadre::supervisor {
namespace {

constexpr int kPollMs = 2;

// Reaps it if it is our child. If it is not, its parent may be dying too, after which the process
// is reparented to us: until then it counts as not reaped.
bool IsReaped(pid_t process, const std::set<pid_t>& killed) {
  siginfo_t info = {};
  if (waitid(P_PID, static_cast<id_t>(process), &info, WEXITED | WNOHANG | __WALL) == 0) {
    return info.si_pid != 0;
  }
  const auto left = InspectProcess(process);
  if (!left.has_value()) return true;
  return left->parent != getpid() && killed.count(left->parent) == 0;
}

// Returns false if something is left. `alive`: those of the remaining processes that have not
// ended.
bool KillOnce(Leftovers& leftovers, std::set<pid_t>* alive) {
  std::set<pid_t>& killed = leftovers.killed;
  bool left = false;
  alive->clear();
  if (!leftovers.cgroup.empty()) {
    for (const pid_t pid : CgroupProcesses(leftovers.cgroup)) alive->insert(pid);
    KillCgroup(leftovers.cgroup);
    left = !RemoveCgroup(leftovers.cgroup);
  }
  const std::string marker = absl::StrCat(leftovers.supervisor_id, ".");
  std::set<pid_t> seen;  // sessions with a process
  for (const pid_t pid : KillProcesses([&](const ProcessInfo& process) {
         if (leftovers.sessions.count(process.session) > 0) {
           seen.insert(process.session);
           return true;
         }
         return absl::StartsWith(ReadMarker(process.pid), marker);
       })) {
    alive->insert(pid);
    left = true;
  }
  killed.insert(alive->begin(), alive->end());
  for (const auto& [session, group] : leftovers.sessions) killed.insert(session);
  for (auto it = killed.begin(); it != killed.end();) {
    const bool reaped = IsReaped(*it, killed);
    left = left || !reaped;
    it = reaped ? killed.erase(it) : std::next(it);
  }
  // The number of a session that is gone may be reused by an unrelated process before the next
  // search.
  for (auto it = leftovers.sessions.begin(); it != leftovers.sessions.end();) {
    const bool gone = killed.count(it->first) == 0 && seen.count(it->first) == 0;
    it = gone ? leftovers.sessions.erase(it) : std::next(it);
  }
  return !left;
}

}  // namespace

void Leftovers::OnFrame(const Frame& frame) {
  if (const auto* ready = std::get_if<ReadyFrame>(&frame)) cgroup = ready->cgroup;
  if (const auto* started = std::get_if<StartedFrame>(&frame)) {
    sessions[started->pid] = started->group;
  }
  if (const auto* exited = std::get_if<ExitedFrame>(&frame)) sessions.erase(exited->pid);
}

std::vector<RemainsFrame> KillLeftovers(Leftovers& leftovers, absl::Duration limit) {
  std::set<pid_t> alive;
  const MonoTime end = MonoNow() + limit;
  while (!KillOnce(leftovers, &alive)) {
    if (MonoNow() >= end) break;
    poll(nullptr, 0, kPollMs);
  }
  std::map<uint64_t, RemainsFrame> remains;
  for (const pid_t pid : alive) {
    const auto process = InspectProcess(pid);
    if (!process.has_value() || process->state == 'Z') continue;
    const auto session = leftovers.sessions.find(process->session);
    const uint64_t group = session == leftovers.sessions.end() ? 0 : session->second;
    RemainsFrame& frame = remains[group];
    frame.group = group;
    frame.processes.push_back({pid, process->state, KernelFunction(absl::StrCat("/proc/", pid))});
  }
  std::vector<RemainsFrame> frames;
  for (auto& [group, frame] : remains) frames.push_back(std::move(frame));
  return frames;
}

}  // namespace cadre::supervisor
