// A TCP socket on a loopback port that the kernel has chosen, for tests in which another process
// occupies the port. One thread.
#ifndef CADRE_TESTS_TESTING_LOOPBACK_SOCKET_H_
#define CADRE_TESTS_TESTING_LOOPBACK_SOCKET_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/scoped_fd.h"
#include "gtest/gtest.h"

namespace cadre {

class LoopbackSocket {
 public:
  // The socket is bound but does not listen yet.
  LoopbackSocket() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* plain = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(fd_.get(), plain, size), 0);
    EXPECT_EQ(getsockname(fd_.get(), plain, &size), 0);
    port_ = ntohs(address.sin_port);
  }

  int fd() const { return fd_.get(); }
  int port() const { return port_; }
  // After this call the kernel accepts connections.
  void Listen() const { EXPECT_EQ(listen(fd_.get(), 16), 0); }

 private:
  const ScopedFd fd_;
  int port_ = 0;
};

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_LOOPBACK_SOCKET_H_
