#include "base/peer_user.h"

#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/scoped_fd.h"

namespace cadre {
namespace {

// One end of a connection. Addresses of IPv4 are of that family, also where a socket of IPv6 has
// them.
struct End {
  int family = AF_UNSPEC;
  uint32_t address[4] = {};  // as in the network
  uint16_t port = 0;         // likewise

  friend bool operator==(const End& a, const End& b) {
    return a.family == b.family && a.port == b.port &&
           memcmp(a.address, b.address, sizeof(a.address)) == 0;
  }
};

End EndOf(const sockaddr_storage& from) {
  End end;
  if (from.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(from);
    end = {AF_INET, {in.sin_addr.s_addr}, in.sin_port};
  } else if (from.ss_family == AF_INET6) {
    const auto& in = reinterpret_cast<const sockaddr_in6&>(from);
    end.port = in.sin6_port;
    if (IN6_IS_ADDR_V4MAPPED(&in.sin6_addr)) {
      end.family = AF_INET;
      memcpy(end.address, in.sin6_addr.s6_addr + 12, 4);
    } else {
      end.family = AF_INET6;
      memcpy(end.address, in.sin6_addr.s6_addr, 16);
    }
  }
  return end;
}

// What the kernel knows of the socket with these ends. kElsewhere: there is none; kUnknown: it does
// not say.
PeerUser Ask(const End& own, const End& other) {
  struct {
    nlmsghdr head;
    inet_diag_req_v2 body;
  } request = {};
  request.head.nlmsg_len = sizeof(request);
  request.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.head.nlmsg_flags = NLM_F_REQUEST;
  request.body.sdiag_family = static_cast<uint8_t>(own.family);
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = ~0u;
  inet_diag_sockid& id = request.body.id;
  id.idiag_sport = own.port;
  id.idiag_dport = other.port;
  memcpy(id.idiag_src, own.address, sizeof(own.address));
  memcpy(id.idiag_dst, other.address, sizeof(other.address));
  id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  const ScopedFd netlink(socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!netlink.ok()) return {};
  if (send(netlink.get(), &request, sizeof(request), 0) != sizeof(request)) return {};
  alignas(nlmsghdr) char buffer[1024];
  // The answer is there when send returns.
  const ssize_t got = recv(netlink.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
  const auto* head = reinterpret_cast<const nlmsghdr*>(buffer);
  if (got < 0 || !NLMSG_OK(head, static_cast<size_t>(got))) return {};
  if (head->nlmsg_type == NLMSG_ERROR) {
    const auto* error = static_cast<const nlmsgerr*>(NLMSG_DATA(head));
    return {error->error == -ENOENT ? PeerUser::Where::kElsewhere : PeerUser::Where::kUnknown, 0};
  }
  if (head->nlmsg_type != SOCK_DIAG_BY_FAMILY) return {};
  const auto* found = static_cast<const inet_diag_msg*>(NLMSG_DATA(head));
  // A listener that would take such a connection is not it.
  if (found->idiag_state == TCP_LISTEN) return {PeerUser::Where::kElsewhere, 0};
  // Without a process the kernel says root.
  if (found->idiag_inode == 0) return {PeerUser::Where::kGone, 0};
  return {PeerUser::Where::kHere, found->idiag_uid};
}

// As /proc/net/tcp has it, "0100007F:1F90" or 32 digits: each word in the machine's byte order.
std::optional<End> EndFrom(const char* text, int family) {
  End end;
  end.family = family;
  const int words = family == AF_INET ? 1 : 4;
  if (strlen(text) != static_cast<size_t>(8 * words + 5)) return std::nullopt;
  for (int i = 0; i < words; ++i) {
    if (sscanf(text + 8 * i, "%8" SCNx32, &end.address[i]) != 1) return std::nullopt;
  }
  unsigned port = 0;
  if (sscanf(text + 8 * words + 1, "%4x", &port) != 1) return std::nullopt;
  end.port = htons(static_cast<uint16_t>(port));
  if (family == AF_INET6 && end.address[0] == 0 && end.address[1] == 0 &&
      end.address[2] == htonl(0xffff)) {
    return End{AF_INET, {end.address[3]}, end.port};
  }
  return end;
}

PeerUser Scan(const End& own, const End& other) {
  bool any = false;
  for (const int family : {AF_INET, AF_INET6}) {
    std::ifstream file(family == AF_INET ? "/proc/net/tcp" : "/proc/net/tcp6");
    std::string line;
    if (!std::getline(file, line)) continue;
    any = true;
    while (std::getline(file, line)) {
      char from[48] = "", to[48] = "";
      unsigned uid = 0;
      unsigned long inode = 0;
      if (sscanf(line.c_str(), "%*d: %47s %47s %*x %*x:%*x %*x:%*x %*x %u %*d %lu", from, to, &uid,
                 &inode) != 4) {
        continue;
      }
      const std::optional<End> at = EndFrom(from, family), with = EndFrom(to, family);
      if (!at.has_value() || !with.has_value() || !(*at == own) || !(*with == other)) continue;
      if (inode == 0) return {PeerUser::Where::kGone, 0};
      return {PeerUser::Where::kHere, uid};
    }
  }
  return {any ? PeerUser::Where::kElsewhere : PeerUser::Where::kUnknown, 0};
}

}  // namespace

PeerUser PeerUserOf(int socket) {
  sockaddr_storage own = {}, peer = {};
  socklen_t own_size = sizeof(own), peer_size = sizeof(peer);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_size) != 0 ||
      getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0) {
    return {PeerUser::Where::kGone, 0};
  }
  const End here = EndOf(own), there = EndOf(peer);
  if (here.family == AF_UNSPEC || there.family == AF_UNSPEC) return {};
  const PeerUser asked = Ask(there, here);
  if (asked.where == PeerUser::Where::kHere || asked.where == PeerUser::Where::kGone) return asked;
  // A kernel that has no such answers says the same as one that has no such socket; this end of
  // the connection is one that it must know.
  if (asked.where == PeerUser::Where::kElsewhere &&
      Ask(here, there).where == PeerUser::Where::kHere) {
    return asked;
  }
  return Scan(there, here);
}

bool MayServe(const PeerUser& peer) {
  switch (peer.where) {
    case PeerUser::Where::kHere:
      return peer.uid == geteuid() || peer.uid == 0;
    case PeerUser::Where::kGone:
      return false;
    case PeerUser::Where::kElsewhere:
    case PeerUser::Where::kUnknown:
      break;
  }
  return true;
}

std::string UserText(const PeerUser& peer) {
  if (peer.where != PeerUser::Where::kHere) return "a process that has gone";
  return absl::StrCat("a process of user ", peer.uid);
}

}  // namespace cadre
