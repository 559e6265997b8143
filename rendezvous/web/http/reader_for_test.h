// A connection to an HTTP server, for tests. One thread.
#ifndef CADRE_RENDEZVOUS_WEB_HTTP_READER_FOR_TEST_H_
#define CADRE_RENDEZVOUS_WEB_HTTP_READER_FOR_TEST_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

namespace cadre::web {

class ReaderForTest {
 public:
  explicit ReaderForTest(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~ReaderForTest() { close(fd_); }
  ReaderForTest(const ReaderForTest&) = delete;
  ReaderForTest& operator=(const ReaderForTest&) = delete;

  void Send(absl::string_view bytes) {
    EXPECT_TRUE(connected_);
    EXPECT_EQ(send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL), ssize_t(bytes.size()));
  }
  void Get(absl::string_view path) { Send(absl::StrCat("GET ", path, " HTTP/1.1\r\n\r\n")); }

  // Reads until `text` has arrived; false: the connection ended before, or time ran out.
  bool Await(absl::string_view text) {
    // The server may send other data for ever.
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kTimeoutMs);
    while (!absl::StrContains(got_, text)) {
      if (std::chrono::steady_clock::now() > end || !More()) return false;
    }
    return true;
  }
  // Reads until the server closes the connection.
  const std::string& All() {
    while (More()) {
    }
    return got_;
  }

 private:
  static constexpr int kTimeoutMs = 20000;

  bool More() {
    pollfd readable = {fd_, POLLIN, 0};
    if (poll(&readable, 1, kTimeoutMs) != 1) {
      ADD_FAILURE() << "nothing came";
      return false;
    }
    char buffer[65536];
    const ssize_t count = recv(fd_, buffer, sizeof(buffer), 0);
    if (count > 0) got_.append(buffer, count);
    return count > 0;
  }

  const int fd_;
  bool connected_ = false;
  std::string got_;
};

}  // namespace cadre::web

#endif  // CADRE_RENDEZVOUS_WEB_HTTP_READER_FOR_TEST_H_
