#include "worker_runtime/launched/spawn_child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "rpc/frames/frame_reader.h"
#include "rpc/frames/messages.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/sockets/endpoint.h"
#include "worker_runtime/store/served_worker.h"

namespace cadre::launched {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(10);
constexpr int kPollMillis = 1000;

// -1: this process is none that Spawn() started.
int SocketOf(const environment::GetVariable& get) {
  const std::pair<absl::string_view, absl::string_view> words =
      absl::StrSplit(environment::TextOf(get, kSpawnedVariable), ' ');
  int socket = -1;
  pid_t parent = 0;
  const bool is_ours = absl::SimpleAtoi(words.first, &socket) &&
                       absl::SimpleAtoi(words.second, &parent) && parent == getppid();
  return is_ours ? socket : -1;
}

Result<std::string> ReadFrame(int socket) {
  const MonoTime deadline = MonoNow() + kPatience;
  frames::FrameReader reader(kSpawnFrameBytesMax);
  absl::string_view frame;
  while (MonoNow() < deadline) {
    ASSIGN_OR_RETURN(const bool found, reader.Next(&frame));
    if (found) return std::string(frame);
    pollfd wait = {socket, POLLIN, 0};
    poll(&wait, 1, sockets::MillisUntil(deadline, kPollMillis));
    char bytes[4096];
    const ssize_t got = recv(socket, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got == 0) return UnavailableError("the process that called Spawn() is gone");
    if (got > 0) reader.Append(absl::string_view(bytes, static_cast<size_t>(got)));
  }
  return UnavailableError("the process that called Spawn() does not say which rank this is");
}

}  // namespace

bool IsSpawned(const environment::GetVariable& get) { return SocketOf(get) >= 0; }

SpawnChild::SpawnChild(ScopedFd socket, Assignment assignment)
    : socket_(std::move(socket)), assignment_(std::move(assignment)) {}

Result<SpawnChild> SpawnChild::Make(const environment::GetVariable& get) {
  ScopedFd socket(SocketOf(get));
  if (!socket.ok()) return FailedPreconditionError("Spawn() did not start this process");
  fcntl(socket.get(), F_SETFD, FD_CLOEXEC);
  ASSIGN_OR_RETURN(const std::string frame, ReadFrame(socket.get()));
  ASSIGN_OR_RETURN(Assignment assignment, frames::ParseMessage<Assignment>(frame));
  return SpawnChild(std::move(socket), std::move(assignment));
}

std::unique_ptr<Worker> SpawnChild::MakeWorker() const {
  WorkerPlace place;
  place.job = absl::StrCat("spawn-", getppid());
  place.generation = 1;
  place.rank = place.local_rank = assignment_.rank;
  place.world_size = place.local_world_size = assignment_.ranks;
  return std::make_unique<store::ServedWorker>(
      store::StoreAddress{assignment_.endpoint, assignment_.key}, "the process that called Spawn()",
      place);
}

void SpawnChild::Report(const Status& status) const {
  std::string frame;
  frames::AppendMessage(Outcome::Of(status), &frame);
  // It fits into the socket; a caller that is gone reads nothing.
  if (send(socket_.get(), frame.data(), frame.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return;
}

}  // namespace cadre::launched
