// Parses the kernel's tables of TCP sockets.
#include "base/socket_table.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>

namespace cadre {
namespace {

// Parses an end as the table has it, "0100007F:1F90" or 32 digits: each word of the address is in
// the machine's byte order.
std::optional<SocketEnd> EndFrom(const char* text, int family) {
  SocketEnd end;
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
    return SocketEnd{AF_INET, {end.address[3]}, end.port};
  }
  return end;
}

std::optional<TcpSocket> SocketFrom(const std::string& line, int family) {
  char own[48] = "", other[48] = "";
  unsigned state = 0, uid = 0;
  TcpSocket socket;
  if (sscanf(line.c_str(), "%*d: %47s %47s %x %*x:%*x %*x:%*x %*x %u %*d %" SCNu64, own, other,
             &state, &uid, &socket.inode) != 5) {
    return std::nullopt;
  }
  const std::optional<SocketEnd> own_end = EndFrom(own, family), other_end = EndFrom(other, family);
  if (!own_end.has_value() || !other_end.has_value()) return std::nullopt;
  socket.own = *own_end;
  socket.other = *other_end;
  socket.listens = state == TCP_LISTEN;
  socket.uid = uid;
  return socket;
}

}  // namespace

bool operator==(const SocketEnd& a, const SocketEnd& b) {
  return a.family == b.family && a.port == b.port &&
         memcmp(a.address, b.address, sizeof(a.address)) == 0;
}

bool SocketEnd::IsAnyAddress() const {
  return (address[0] | address[1] | address[2] | address[3]) == 0;
}

SocketEnd SocketEndOf(const sockaddr_storage& address) {
  SocketEnd end;
  if (address.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(address);
    end = {AF_INET, {in.sin_addr.s_addr}, in.sin_port};
  } else if (address.ss_family == AF_INET6) {
    const auto& in = reinterpret_cast<const sockaddr_in6&>(address);
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

bool ForEachTcpSocket(const std::function<bool(const TcpSocket&)>& visit) {
  bool has_table = false;
  for (const int family : {AF_INET, AF_INET6}) {
    std::ifstream file(family == AF_INET ? "/proc/net/tcp" : "/proc/net/tcp6");
    std::string line;
    if (!std::getline(file, line)) continue;
    has_table = true;
    while (std::getline(file, line)) {
      const std::optional<TcpSocket> socket = SocketFrom(line, family);
      if (socket.has_value() && !visit(*socket)) return true;
    }
  }
  return has_table;
}

}  // namespace cadre
