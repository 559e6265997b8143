#include "worker_runtime/launched/spawn_parent.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <map>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"
#include "base/token.h"
#include "cadre/result.h"
#include "rpc/frames/frame_reader.h"
#include "rpc/frames/messages.h"
#include "worker_runtime/launched/own_process.h"
#include "worker_runtime/sockets/endpoint.h"
#include "worker_runtime/store/addresses.h"
#include "worker_runtime/store/store_server.h"

namespace cadre::launched {
namespace {

// Looked at in between, though nothing has to come of it.
constexpr int kPollMillis = 10000;

// An error that a rank often only has because another one failed.
bool IsAnothers(StatusCode code) {
  return code == StatusCode::kAborted || code == StatusCode::kUnavailable ||
         code == StatusCode::kDeadlineExceeded || code == StatusCode::kCancelled;
}

// The less, the sooner it is the cause; 0 and 1 have no error of another's.
int OrderOf(const RankEnd& end) {
  if (!end.outcome.has_value()) return 0;
  return IsAnothers(static_cast<StatusCode>(end.outcome->code)) ? 2 : 1;
}

bool Failed(const RankEnd& end) { return !end.outcome.has_value() || !end.outcome->status().ok(); }

std::optional<Outcome> OutcomeIn(int socket) {
  frames::FrameReader reader(kSpawnFrameBytesMax);
  absl::string_view frame;
  while (true) {
    const absl::StatusOr<bool> found = reader.Next(&frame);
    if (!found.ok()) return std::nullopt;
    if (*found) break;
    // All that it wrote is there, since it has ended.
    char bytes[4096];
    const ssize_t got = recv(socket, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got <= 0) return std::nullopt;
    reader.Append(absl::string_view(bytes, static_cast<size_t>(got)));
  }
  absl::StatusOr<Outcome> outcome = frames::ParseMessage<Outcome>(frame);
  if (!outcome.ok()) return std::nullopt;
  return *std::move(outcome);
}

class Ranks {
 public:
  explicit Ranks(std::chrono::nanoseconds grace) : grace_(absl::FromChrono(grace)) {}

  Status Start(const Assignment& assignment);
  Status Wait();

 private:
  // Those that have ended since.
  std::vector<RankEnd> TakeEnded();
  void EndOthers();

  const absl::Duration grace_;
  std::map<int, std::unique_ptr<OwnProcess>> running_;
  MonoTime kill_at_ = MonoTime::Never();
  bool ending_ = false;
};

Status Ranks::Start(const Assignment& assignment) {
  ASSIGN_OR_RETURN(std::unique_ptr<OwnProcess> process, OwnProcess::Start());
  std::string frame;
  frames::AppendMessage(assignment, &frame);
  const ssize_t sent =
      send(process->socket(), frame.data(), frame.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  // One that has ended already is found below.
  if (sent >= 0 && sent != static_cast<ssize_t>(frame.size())) {
    return InternalError("a new socket has no room for an assignment");
  }
  running_[assignment.rank] = std::move(process);
  return OkStatus();
}

std::vector<RankEnd> Ranks::TakeEnded() {
  std::vector<RankEnd> ended;
  for (auto it = running_.begin(); it != running_.end();) {
    OwnProcess& process = *it->second;
    const std::optional<std::string> how = process.End();
    if (!how.has_value()) {
      ++it;
      continue;
    }
    ended.push_back({it->first, process.pid(), *how, OutcomeIn(process.socket())});
    it = running_.erase(it);
  }
  return ended;
}

void Ranks::EndOthers() {
  if (!ending_) {
    ending_ = true;
    kill_at_ = MonoNow() + grace_;
    for (auto& [rank, process] : running_) process->Signal(SIGTERM);
  } else if (MonoNow() >= kill_at_) {
    kill_at_ = MonoTime::Never();
    for (auto& [rank, process] : running_) process->Signal(SIGKILL);
  }
}

Status Ranks::Wait() {
  Status cause;
  while (!running_.empty()) {
    std::vector<pollfd> waits;
    for (const auto& [rank, process] : running_) waits.push_back({process->pidfd(), POLLIN, 0});
    poll(waits.data(), waits.size(), sockets::MillisUntil(kill_at_, kPollMillis));
    const Status status = CauseAmong(TakeEnded());
    if (cause.ok()) cause = status;
    if (!cause.ok()) EndOthers();
  }
  return cause;
}

}  // namespace

Status CauseAmong(const std::vector<RankEnd>& ends) {
  const RankEnd* cause = nullptr;
  for (const RankEnd& end : ends) {
    if (Failed(end) && (cause == nullptr || OrderOf(end) < OrderOf(*cause))) cause = &end;
  }
  if (cause == nullptr) return OkStatus();
  const std::string who = absl::StrCat("rank ", cause->rank, " (process ", cause->pid, ") ");
  if (!cause->outcome.has_value()) {
    return InternalError(absl::StrCat(who, cause->how, " before it had done its part of Spawn()"));
  }
  const Status status = cause->outcome->status();
  return Status(status.code(), absl::StrCat(who, "failed: ", status.message()));
}

Status SpawnAll(int ranks, const std::vector<Outcome>& earlier, std::chrono::nanoseconds grace) {
  ASSIGN_OR_RETURN(ScopedFd listener, sockets::Listen(store::kLoopback));
  Assignment assignment;
  assignment.ranks = ranks;
  assignment.key = RandomToken();
  assignment.earlier = earlier;
  ASSIGN_OR_RETURN(const std::unique_ptr<store::StoreServer> server,
                   store::StoreServer::Start(std::move(listener), ranks, assignment.key));
  assignment.endpoint = server->endpoint();
  // Goes first, and ends those that have been started.
  Ranks all(grace);
  for (assignment.rank = 0; assignment.rank < ranks; ++assignment.rank) {
    RETURN_IF_ERROR(all.Start(assignment));
  }
  return all.Wait();
}

}  // namespace cadre::launched
