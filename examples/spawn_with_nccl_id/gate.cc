#include "gate.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "cadre/status_macros.h"

namespace cadre {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kWelcome[] = "all are here";
// Of the gate's answers.
constexpr size_t kMaxAnswer = 256;
constexpr int kBacklog = 64;
// Whoever connects has this long to say who it is, so that nobody holds up the others.
constexpr std::chrono::seconds kSpeakUp(2);

// Closes a descriptor in the end.
class Closer {
 public:
  explicit Closer(int fd) : fd_(fd) {}
  ~Closer() { close(fd_); }
  Closer(const Closer&) = delete;
  Closer& operator=(const Closer&) = delete;

 private:
  const int fd_;
};

Status ErrnoStatus(const std::string& what) {
  return UnavailableError(what + ": " + strerror(errno));
}

Status WaitReadable(int fd, Clock::time_point deadline) {
  pollfd waiting = {fd, POLLIN, 0};
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  const auto timeout = std::clamp<int64_t>(left.count(), 0, 1 << 30);
  const int ready = poll(&waiting, 1, static_cast<int>(timeout));
  if (ready > 0 || (ready < 0 && errno == EINTR)) return OkStatus();
  return ready == 0 ? DeadlineExceededError("nothing came in time") : ErrnoStatus("poll");
}

// Up to `size` bytes, fewer when the other end closes.
Result<std::string> Receive(int fd, size_t size, Clock::time_point deadline) {
  std::string bytes;
  while (bytes.size() < size) {
    CADRE_RETURN_IF_ERROR(WaitReadable(fd, deadline));
    char piece[kMaxAnswer];
    const ssize_t got = recv(fd, piece, std::min(sizeof(piece), size - bytes.size()), MSG_DONTWAIT);
    if (got == 0) break;
    if (got > 0) bytes.append(piece, got);
    if (got < 0 && errno != EAGAIN && errno != EINTR) return ErrnoStatus("recv");
  }
  return bytes;
}

Status SendAll(int fd, std::string_view bytes) {
  // Small enough for the socket's buffer: it never waits.
  const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return sent == static_cast<ssize_t>(bytes.size()) ? OkStatus() : ErrnoStatus("send");
}

// Takes the same time wherever the two differ.
bool SameSecret(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

Result<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return InvalidArgumentError("\"" + path + "\" is too long for a socket");
  }
  path.copy(address.sun_path, path.size());
  return address;
}

int NewSocket() { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); }

}  // namespace

Gate::Gate(std::string id, int ranks)
    : id_(std::move(id)), fd_(NewSocket()), connections_(ranks, -1) {}

Gate::Gate(Gate&& other) noexcept
    : id_(other.id_),
      path_(std::exchange(other.path_, "")),
      fd_(std::exchange(other.fd_, -1)),
      connections_(std::exchange(other.connections_, {})) {}

Gate::~Gate() {
  for (const int fd : connections_) {
    if (fd >= 0) close(fd);
  }
  if (fd_ >= 0) close(fd_);
  if (path_.empty()) return;
  unlink(path_.c_str());
  rmdir(path_.substr(0, path_.rfind('/')).c_str());
}

Result<Gate> Gate::Open(std::string id, int ranks) {
  Gate gate(std::move(id), ranks);
  const char* base = getenv("TMPDIR");
  std::string directory = std::string(base == nullptr ? "/tmp" : base) + "/gate_XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) return ErrnoStatus(directory);
  gate.path_ = directory + "/socket";
  CADRE_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(gate.path_));
  if (gate.fd_ < 0 ||
      bind(gate.fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(gate.fd_, kBacklog) != 0) {
    return ErrnoStatus(gate.path_);
  }
  return gate;
}

Result<int> Gate::AskRank(int connection, Clock::time_point deadline) const {
  int32_t rank = 0;
  // More than is right, so that too much is seen.
  CADRE_ASSIGN_OR_RETURN(const std::string said,
                         Receive(connection, sizeof(rank) + id_.size() + kMaxAnswer, deadline));
  if (said.size() < sizeof(rank) || !SameSecret(said.substr(sizeof(rank)), id_)) {
    return PermissionDeniedError("it does not hold the id");
  }
  memcpy(&rank, said.data(), sizeof(rank));
  if (rank < 0 || rank >= static_cast<int32_t>(connections_.size())) {
    return PermissionDeniedError("there is no rank " + std::to_string(rank));
  }
  if (connections_[rank] >= 0) {
    return PermissionDeniedError("rank " + std::to_string(rank) + " is here already");
  }
  return rank;
}

Status Gate::AnswerOne(Clock::time_point deadline) {
  if (!WaitReadable(fd_, deadline).ok()) {
    std::string missing;
    for (size_t rank = 0; rank < connections_.size(); ++rank) {
      if (connections_[rank] >= 0) continue;
      if (!missing.empty()) missing += ", ";
      missing += std::to_string(rank);
    }
    return DeadlineExceededError("ranks that have not come in time: " + missing);
  }
  const int connection = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
  if (connection < 0) return ErrnoStatus("accept");
  const Result<int> rank = AskRank(connection, std::min(deadline, Clock::now() + kSpeakUp));
  if (rank.ok()) {
    connections_[*rank] = connection;
    return OkStatus();
  }
  // It may have gone already.
  SendAll(connection, rank.status().message()).IgnoreError();
  close(connection);
  return PermissionDeniedError(rank.status().message());
}

bool Gate::AllAreIn() const {
  return std::count(connections_.begin(), connections_.end(), -1) == 0;
}

Status Gate::Welcome() {
  for (const int fd : connections_) {
    CADRE_RETURN_IF_ERROR(SendAll(fd, kWelcome));
    shutdown(fd, SHUT_WR);
  }
  return OkStatus();
}

Status EnterGate(const std::string& path, std::string_view id, int rank,
                 std::chrono::nanoseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  const int fd = NewSocket();
  if (fd < 0) return ErrnoStatus("socket");
  const Closer closer(fd);
  CADRE_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoStatus(path);
  }
  const int32_t claimed = rank;
  std::string hello(reinterpret_cast<const char*>(&claimed), sizeof(claimed));
  hello += id;
  CADRE_RETURN_IF_ERROR(SendAll(fd, hello));
  shutdown(fd, SHUT_WR);
  CADRE_ASSIGN_OR_RETURN(const std::string answer, Receive(fd, kMaxAnswer, deadline));
  if (answer == kWelcome) return OkStatus();
  if (answer.empty()) return UnavailableError("the gate closed before all were here");
  return PermissionDeniedError(answer);
}

}  // namespace cadre
