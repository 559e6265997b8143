#include "worker_runtime/gloo/peer_links.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"

namespace cadre::gloo {
namespace {

// Where a rank listens, and what whoever connects there must say.
struct Invitation {
  sockaddr_storage address;
  socklen_t address_bytes;
  char token[16];
};
struct Hello {
  char token[16];
  int32_t rank;
};

absl::Status Failed(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno)));
}

// Until the descriptor can be read or written; false: the deadline passed.
bool WaitFor(int fd, short events, MonoTime deadline) {
  while (true) {
    const int64_t left =
        absl::ToInt64Milliseconds(absl::Ceil(deadline - MonoNow(), absl::Milliseconds(1)));
    if (left <= 0) return false;
    pollfd one = {fd, events, 0};
    const int ready = poll(&one, 1, static_cast<int>(std::min<int64_t>(left, 1000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

absl::StatusOr<int> Listen(const std::string& address, int backlog, Invitation* invitation) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.c_str(), "0", &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("'", address, "': ", gai_strerror(error)));
  }
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    const int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) continue;
    invitation->address_bytes = sizeof(invitation->address);
    auto* const own = reinterpret_cast<sockaddr*>(&invitation->address);
    if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, backlog) == 0 &&
        getsockname(fd, own, &invitation->address_bytes) == 0) {
      return fd;
    }
    close(fd);
  }
  return Failed(absl::StrCat("listening on ", address));
}

absl::StatusOr<int> CallOn(int peer, const Invitation& invitation, const Hello& hello,
                           MonoTime deadline) {
  const int fd =
      socket(invitation.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return Failed("socket");
  const auto* const address = reinterpret_cast<const sockaddr*>(&invitation.address);
  int error = connect(fd, address, invitation.address_bytes) == 0 ? 0 : errno;
  bool in_time = true;
  if (error == EINPROGRESS) {
    in_time = WaitFor(fd, POLLOUT, deadline);
    socklen_t bytes = sizeof(error);
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
  }
  if (in_time && error == 0 && send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello)) {
    return fd;
  }
  close(fd);
  if (!in_time) return absl::DeadlineExceededError(absl::StrCat("rank ", peer, " did not answer"));
  return absl::UnavailableError(
      absl::StrCat("rank ", peer, " cannot be reached: ", strerror(error)));
}

// The next who connects and knows the token; others are turned away.
absl::StatusOr<std::pair<int, int>> Welcome(int listener, const Invitation& own, int rank, int size,
                                            MonoTime deadline) {
  while (WaitFor(listener, POLLIN, deadline)) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) continue;
    Hello hello;
    const MonoTime patience = std::min(deadline, MonoNow() + absl::Seconds(1));
    const bool spoke = WaitFor(fd, POLLIN, patience) &&
                       recv(fd, &hello, sizeof(hello), 0) == sizeof(hello) &&
                       memcmp(hello.token, own.token, sizeof(own.token)) == 0;
    if (spoke && hello.rank > rank && hello.rank < size) return std::make_pair(hello.rank, fd);
    close(fd);
  }
  return absl::DeadlineExceededError("not all ranks connected in time");
}

}  // namespace

PeerLinks::PeerLinks(int rank, int size)
    : rank_(rank), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), links_(size) {}

PeerLinks::~PeerLinks() {
  for (const Link& link : links_) {
    if (link.fd >= 0) close(link.fd);
  }
  close(wake_);
}

absl::StatusOr<std::unique_ptr<PeerLinks>> PeerLinks::Connect(int rank, int size,
                                                              const std::string& address,
                                                              const AllGather& all_gather,
                                                              MonoTime deadline) {
  std::unique_ptr<PeerLinks> links(new PeerLinks(rank, size));
  Invitation own = {};
  ASSIGN_OR_RETURN(const int listener, Listen(address, size, &own));
  const absl::Cleanup close_listener = [listener] { close(listener); };
  if (getrandom(own.token, sizeof(own.token), 0) != sizeof(own.token)) return Failed("getrandom");
  std::vector<Invitation> all(size);
  RETURN_IF_ERROR(all_gather(&own, all.data(), sizeof(own)));
  // A connection counts as made before it is accepted, so this waits for nobody's turn.
  for (int peer = 0; peer < rank; ++peer) {
    Hello hello = {};
    memcpy(hello.token, all[peer].token, sizeof(hello.token));
    hello.rank = rank;
    ASSIGN_OR_RETURN(links->links_[peer].fd, CallOn(peer, all[peer], hello, deadline));
  }
  for (int missing = size - rank - 1; missing > 0;) {
    ASSIGN_OR_RETURN(const auto arrived, Welcome(listener, own, rank, size, deadline));
    int& fd = links->links_[arrived.first].fd;
    if (fd >= 0) {
      close(arrived.second);
      continue;
    }
    fd = arrived.second;
    --missing;
  }
  for (const Link& link : links->links_) {
    const int on = 1;
    if (link.fd >= 0) setsockopt(link.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  return links;
}

void PeerLinks::Wake() {
  const uint64_t one = 1;
  // Full only when the other side is awake.
  if (write(wake_, &one, sizeof(one)) < 0) return;
}

void PeerLinks::Send(int peer, const PeerMessage& message, bool is_last) {
  absl::MutexLock lock(&mutex_);
  Link& link = links_[peer];
  if (link.fd < 0 || (!link.outgoing.empty() && !is_last)) return;
  link.outgoing.append(reinterpret_cast<const char*>(&message), sizeof(message));
  Flush(link);
  if (!link.outgoing.empty()) Wake();
}

void PeerLinks::Flush(Link& link) {
  while (!link.outgoing.empty()) {
    const ssize_t sent =
        send(link.fd, link.outgoing.data(), link.outgoing.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      link.outgoing.erase(0, sent);
    } else if (sent < 0 && errno != EINTR) {
      // Broken ones are noticed by whoever reads.
      if (errno != EAGAIN) link.outgoing.clear();
      return;
    }
  }
}

void PeerLinks::Poll(absl::Duration timeout, const Listener& listener) {
  std::vector<pollfd> descriptors = {{wake_, POLLIN, 0}};
  {
    absl::MutexLock lock(&mutex_);
    for (const Link& link : links_) {
      // poll() ignores negative ones.
      const short events = link.outgoing.empty() ? POLLIN : POLLIN | POLLOUT;
      descriptors.push_back({link.fd, events, 0});
    }
  }
  const int64_t millis =
      timeout == absl::InfiniteDuration() ? -1 : absl::ToInt64Milliseconds(timeout);
  if (poll(descriptors.data(), descriptors.size(), static_cast<int>(millis)) <= 0) return;
  uint64_t count = 0;
  if (descriptors[0].revents != 0 && read(wake_, &count, sizeof(count)) < 0) return;
  for (size_t peer = 0; peer < links_.size(); ++peer) {
    const short events = descriptors[peer + 1].revents;
    if ((events & POLLOUT) != 0) {
      absl::MutexLock lock(&mutex_);
      Flush(links_[peer]);
    }
    if ((events & ~POLLOUT) == 0 || Receive(static_cast<int>(peer), listener)) continue;
    {
      absl::MutexLock lock(&mutex_);
      close(links_[peer].fd);
      links_[peer].fd = -1;
      links_[peer].outgoing.clear();
    }
    listener.hear_end(static_cast<int>(peer));
  }
}

bool PeerLinks::Receive(int peer, const Listener& listener) {
  Link& link = links_[peer];
  while (true) {
    char bytes[4 * sizeof(PeerMessage)];
    const ssize_t got = recv(link.fd, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return true;
    if (got <= 0) return false;
    link.incoming.append(bytes, got);
    while (link.incoming.size() >= sizeof(PeerMessage)) {
      PeerMessage message;
      memcpy(&message, link.incoming.data(), sizeof(message));
      message.text[sizeof(message.text) - 1] = '\0';
      link.incoming.erase(0, sizeof(message));
      listener.hear(peer, message);
    }
  }
}

}  // namespace cadre::gloo
