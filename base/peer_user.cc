// Finds the user of the process at the other end of a connection, in the kernel's socket tables.
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

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/scoped_fd.h"
#include "base/socket_table.h"

namespace cadre {
namespace {

// Asks the kernel for the socket with these ends. kElsewhere: there is none; kUnknown: the kernel
// does not tell.
PeerUser QueryKernel(const SocketEnd& own, const SocketEnd& other) {
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
  // If there is no such socket, the kernel may answer with a listener that would accept the
  // connection.
  if (found->idiag_state == TCP_LISTEN) return {PeerUser::Where::kElsewhere, 0};
  // If no process has the socket open any more, the kernel gives root as its user.
  if (found->idiag_inode == 0) return {PeerUser::Where::kGone, 0};
  return {PeerUser::Where::kHere, found->idiag_uid};
}

// Looks for the same socket in the kernel's table, which has a line for each socket.
PeerUser ScanTable(const SocketEnd& own, const SocketEnd& other) {
  PeerUser found = {PeerUser::Where::kElsewhere, 0};
  const bool has_table = ForEachTcpSocket([&](const TcpSocket& socket) {
    if (!(socket.own == own) || !(socket.other == other)) return true;
    if (socket.inode == 0) {
      found.where = PeerUser::Where::kGone;
    } else {
      found = {PeerUser::Where::kHere, socket.uid};
    }
    return false;
  });
  return has_table ? found : PeerUser();
}

}  // namespace

PeerUser PeerUserOf(int socket) {
  sockaddr_storage own = {}, peer = {};
  socklen_t own_size = sizeof(own), peer_size = sizeof(peer);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_size) != 0 ||
      getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0) {
    return {PeerUser::Where::kGone, 0};
  }
  const SocketEnd here = SocketEndOf(own), there = SocketEndOf(peer);
  if (here.family == AF_UNSPEC || there.family == AF_UNSPEC) return {};
  const PeerUser asked = QueryKernel(there, here);
  if (asked.where == PeerUser::Where::kHere || asked.where == PeerUser::Where::kGone) return asked;
  // A kernel without socket diagnostics gives the same error as for a socket that does not exist.
  // The socket of this end exists, so asking for it tells the two cases apart.
  if (asked.where == PeerUser::Where::kElsewhere &&
      QueryKernel(here, there).where == PeerUser::Where::kHere) {
    return asked;
  }
  return ScanTable(there, here);
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
