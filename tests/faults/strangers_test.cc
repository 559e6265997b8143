// Strangers at the server's port, who have no token: they hold connections and say nothing.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/scoped_fd.h"
#include "base/status_matchers.h"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

constexpr int kDescriptors = 96;
constexpr int kConnections = 300;

class StrangersTest : public testing::Test {
 protected:
  void SetUp() override {
    server_ = StartProgram("/usr/bin/prlimit",
                           {absl::StrCat("--nofile=", kDescriptors, ":", kDescriptors), kCadre,
                            "server", "--port", absl::StrCat(port_), "--state-dir", "none"});
    ASSERT_NE(server_, nullptr);
    ASSERT_TRUE(server_->WaitForLine("serving at").has_value()) << server_->standard_error();
  }

  // Those that the kernel takes; the server may close them again.
  std::vector<ScopedFd> Flood() const {
    std::vector<ScopedFd> strangers;
    for (int i = 0; i < kConnections; ++i) {
      ScopedFd one(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_in address = {};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      address.sin_port = htons(static_cast<uint16_t>(port_));
      EXPECT_EQ(connect(one.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
      strangers.push_back(std::move(one));
    }
    return strangers;
  }

  void ExpectAnswer(const char* when) const {
    const auto status = StartCadre({"status", "--server", absl::StrCat("127.0.0.1:", port_)});
    ASSERT_NE(status, nullptr);
    EXPECT_EQ(status->Wait(), 0) << when << ": " << status->standard_error();
  }

  std::unique_ptr<Process> server_;
  const int port_ = FreePort();
};

// Fault (access): Clients that do not authenticate take all of a server's descriptors and send
// nothing -> The oldest eighth of them is closed at once; clients with a token are served meanwhile
// and afterwards
TEST_F(StrangersTest, WhoTakeAllDescriptors_TheServerAnswersMeanwhileAndAfterwards) {
  ExpectAnswer("before");
  {
    const std::vector<ScopedFd> strangers = Flood();
    ExpectAnswer("meanwhile");
  }
  ExpectAnswer("afterwards");
}

}  // namespace
}  // namespace cadre
