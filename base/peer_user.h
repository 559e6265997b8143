// Whose process is at the other end of a TCP connection, where it is one of this machine. A port
// serves whoever connects, whatever their user; a Unix socket would say it, TCP does not. Thread
// safe.
#ifndef CADRE_BASE_PEER_USER_H_
#define CADRE_BASE_PEER_USER_H_

#include <sys/types.h>

#include <string>

namespace cadre {

struct PeerUser {
  enum class Where {
    kHere,       // a process of `uid`
    kElsewhere,  // in another machine, or another network namespace: the network says who it is
    kGone,       // nobody has that end any more, or had it only to write to it
    kUnknown,    // the kernel does not say
  };
  Where where = Where::kUnknown;
  uid_t uid = 0;
};

// Of a socket that was accepted. Asks the kernel for this very connection (NETLINK_SOCK_DIAG),
// which costs some microseconds however many there are; where it has no such answers /proc/net/tcp.
PeerUser PeerUserOf(int socket);

// Whether the other end may be served what is for the processes of this one's user: it is theirs,
// root's, or no process of this machine.
bool MayServe(const PeerUser& peer);

// "user 1001", for people.
std::string UserText(const PeerUser& peer);

}  // namespace cadre

#endif  // CADRE_BASE_PEER_USER_H_
