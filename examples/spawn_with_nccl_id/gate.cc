#include "gate.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "cadre/status_macros.h"
#include "spawn.h"

namespace cadre {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kWelcome[] = "all are here";
// The longest answer of the gate.
constexpr size_t kMaxAnswer = 256;
constexpr int kBacklog = 64;
// A client has this long to send its rank and the id, so that it cannot hold up the others.
constexpr std::chrono::seconds kSpeakUp(2);

// Closes a descriptor when it is destroyed.
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
  return ready == 0 ? DeadlineExceededError("the other process sent nothing in time")
                    : ErrnoStatus("poll");
}

// Receives up to `size` bytes, or fewer if the other end closes.
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
  // The message fits into the socket's buffer, so sending never blocks.
  const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return sent == static_cast<ssize_t>(bytes.size()) ? OkStatus() : ErrnoStatus("send");
}

// Compares in the same time wherever the two differ.
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
  // Asks for more bytes than is right, so that too long a message is detected.
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
  // The client may have gone already.
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
  if (answer.empty()) {
    return UnavailableError(
        "the gate closed before all ranks had come in; see what the process that opened it "
        "printed");
  }
  return PermissionDeniedError(answer);
}

namespace {

Status ErrnoStatus(const std::string& what, int error) {
  return UnavailableError(what + ": " + strerror(error));
}

}  // namespace

Result<pid_t> SpawnWithSecret(const std::vector<std::string>& argv, std::string_view secret) {
  if (argv.empty()) return InvalidArgumentError("SpawnWithSecret() was given no program");
  if (secret.size() > kMaxSecretBytes) {
    return InvalidArgumentError("a secret of " + std::to_string(secret.size()) +
                                " bytes; at most " + std::to_string(kMaxSecretBytes));
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus("pipe", errno);
  // The pipe holds the secret from here on; the reader sees its end when the writing end is closed.
  const ssize_t written = write(ends[1], secret.data(), secret.size());
  const int write_error = errno;
  close(ends[1]);
  if (written != static_cast<ssize_t>(secret.size())) {
    close(ends[0]);
    return ErrnoStatus("write to a pipe", write_error);
  }

  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.data()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // This also clears the close-on-exec flag if the numbers are equal.
  posix_spawn_file_actions_adddup2(&actions, ends[0], kSecretFd);
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, argv[0].c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[0]);
  if (error != 0) return ErrnoStatus(argv[0], error);
  return pid;
}

Result<std::string> ReadSecret() {
  std::string secret(kMaxSecretBytes, '\0');
  size_t size = 0;
  while (size < secret.size()) {
    const ssize_t got = read(kSecretFd, secret.data() + size, secret.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return FailedPreconditionError(
          "descriptor " + std::to_string(kSecretFd) + ": " + strerror(errno) +
          "; this program starts its own processes: leave --local-rank away");
    }
    if (got == 0) break;
    size += got;
  }
  close(kSecretFd);
  secret.resize(size);
  return secret;
}

}  // namespace cadre
