#include "worker_runtime/sockets/peer_links.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

namespace cadre::sockets {
PeerLinks::PeerLinks(std::vector<wire::Connection> connections)
    : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), links_(connections.size()) {
  for (size_t peer = 0; peer < connections.size(); ++peer) {
    links_[peer].connection = std::move(connections[peer]);
  }
}

void PeerLinks::Wake() {
  const uint64_t one = 1;
  // Full only when the other side is awake.
  if (write(wake_.get(), &one, sizeof(one)) < 0) return;
}

void PeerLinks::Send(int peer, const PeerMessage& message, bool is_last) {
  absl::MutexLock lock(&mutex_);
  Link& link = links_[peer];
  if (!link.connection.ok() || (!link.outgoing.empty() && !is_last)) return;
  link.outgoing.append(reinterpret_cast<const char*>(&message), sizeof(message));
  Flush(link);
  if (!link.outgoing.empty()) Wake();
}

void PeerLinks::Flush(Link& link) {
  while (!link.outgoing.empty()) {
    const ssize_t sent = link.connection.Send(link.outgoing);
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
  std::vector<pollfd> descriptors = {{wake_.get(), POLLIN, 0}};
  {
    absl::MutexLock lock(&mutex_);
    for (const Link& link : links_) {
      // poll() ignores negative ones.
      const short events = link.outgoing.empty() ? POLLIN : POLLIN | POLLOUT;
      descriptors.push_back({link.connection.fd(), events, 0});
    }
  }
  const int64_t millis =
      timeout == absl::InfiniteDuration() ? -1 : absl::ToInt64Milliseconds(timeout);
  if (poll(descriptors.data(), descriptors.size(), static_cast<int>(millis)) <= 0) return;
  uint64_t count = 0;
  if (descriptors[0].revents != 0 && read(wake_.get(), &count, sizeof(count)) < 0) return;
  for (size_t peer = 0; peer < links_.size(); ++peer) {
    const short events = descriptors[peer + 1].revents;
    if ((events & POLLOUT) != 0) {
      absl::MutexLock lock(&mutex_);
      Flush(links_[peer]);
    }
    if ((events & ~POLLOUT) == 0) continue;
    const int error = Receive(static_cast<int>(peer), listener);
    if (error == 0) continue;
    {
      absl::MutexLock lock(&mutex_);
      links_[peer].connection.Close();
      links_[peer].outgoing.clear();
    }
    const bool out_of_reach = error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH;
    listener.hear_end(static_cast<int>(peer), error == EBADMSG ? LinkEnd::kAltered
                                              : out_of_reach   ? LinkEnd::kOutOfReach
                                                               : LinkEnd::kClosed);
  }
}

int PeerLinks::Receive(int peer, const Listener& listener) {
  Link& link = links_[peer];
  while (true) {
    char bytes[4 * sizeof(PeerMessage)];
    const ssize_t got = link.connection.Receive(bytes, sizeof(bytes));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return 0;
    if (got <= 0) return got == 0 ? ECONNRESET : errno;
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

}  // namespace cadre::sockets
