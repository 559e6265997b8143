// Reads the kernel's table of the TCP sockets of this network namespace, /proc/net/tcp and tcp6,
// which is how the user and the process of another process's socket are found.
#ifndef CADRE_BASE_SOCKET_TABLE_H_
#define CADRE_BASE_SOCKET_TABLE_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>

namespace cadre {

// One end of a connection. An IPv4 address is of the family AF_INET even if a socket of IPv6 has
// it.
struct SocketEnd {
  int family = AF_UNSPEC;
  // Address and port are in network byte order.
  uint32_t address[4] = {};
  uint16_t port = 0;

  friend bool operator==(const SocketEnd& a, const SocketEnd& b);
  // The address of a listener that accepts connections to all addresses.
  bool IsAnyAddress() const;
};

// Converts the address. The family is AF_UNSPEC if the address is neither IPv4 nor IPv6.
SocketEnd SocketEndOf(const sockaddr_storage& address);

struct TcpSocket {
  SocketEnd own, other;
  bool listens = false;
  uid_t uid = 0;
  // Identifies the socket in /proc/PID/fd; 0: no process has it open any more.
  uint64_t inode = 0;
};

// Calls `visit` for each socket until that returns false. Returns false if there is no table.
bool ForEachTcpSocket(const std::function<bool(const TcpSocket&)>& visit);

}  // namespace cadre

#endif  // CADRE_BASE_SOCKET_TABLE_H_
