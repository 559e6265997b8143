// Finds the user of the process at the other end of a TCP connection, if that process is on this
// machine. A TCP port accepts connections of any local user, and unlike a Unix socket TCP does not
// tell which user it is. Thread safe.
#ifndef CADRE_BASE_PEER_USER_H_
#define CADRE_BASE_PEER_USER_H_

#include <sys/types.h>

#include <string>

namespace cadre {

struct PeerUser {
  enum class Where {
    kHere,       // a process of `uid`
    kElsewhere,  // on another machine or in another network namespace
    kGone,       // no process has that end open any more
    kUnknown,    // the kernel does not say
  };
  Where where = Where::kUnknown;
  uid_t uid = 0;
};

// The peer of a socket that was accepted. Asks the kernel for this one connection
// (NETLINK_SOCK_DIAG), which takes some microseconds however many connections there are; if the
// kernel does not support that, /proc/net/tcp is read.
PeerUser PeerUserOf(int socket);

// Whether the other end may be served what is meant for processes of this process's user: it is a
// process of that user or of root, or no process of this machine.
bool MayServe(const PeerUser& peer);

// "user 1001", for people.
std::string UserText(const PeerUser& peer);

}  // namespace cadre

#endif  // CADRE_BASE_PEER_USER_H_
