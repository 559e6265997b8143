// When a server starts, and why it does not.
#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/barrier.h"
#include "base/status_matchers.h"
#include "base/token.h"
#include "rendezvous/host/core_thread.h"
#include "rendezvous/service/server.h"

namespace cadre::service {
namespace {

using ::testing::HasSubstr;

constexpr char kToken[] = "0123456789abcdef0123456789abcdef";

class ServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ServerOptions options;
    options.token = kToken;
    absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options, core_);
    ASSERT_OK(server);
    server_ = *std::move(server);
  }

  host::CoreThread core_{host::NewCoreConfig()};
  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, SecondServerOnThePort) {
  ServerOptions options;
  options.token = kToken;
  options.port = server_->port();
  EXPECT_THAT(Server::Start(options, core_),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr(absl::StrCat("port ", options.port, " on 127.0.0.1 is in use"))));
}

// Launchers of one job start in the same millisecond, and whoever has the port serves.
TEST_F(ServerTest, OfManyThatStartOnOnePortAtOnceExactlyOneServes) {
  for (int round = 0; round < 100; ++round) {
    ServerOptions options;
    options.token = kToken;
    options.port = server_->port();
    server_.reset();
    std::vector<absl::StatusOr<std::unique_ptr<Server>>> started;
    for (int i = 0; i < 4; ++i) started.emplace_back(absl::UnknownError("not started"));
    absl::Barrier* const together = new absl::Barrier(static_cast<int>(started.size()));
    std::vector<std::thread> threads;
    for (auto& server : started) {
      threads.emplace_back([&] {
        if (together->Block()) delete together;
        server = Server::Start(options, core_);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (auto& server : started) {
      if (server.ok()) {
        EXPECT_EQ(server_, nullptr) << "two serve";
        server_ = *std::move(server);
      } else {
        EXPECT_THAT(server.status(), StatusIs(absl::StatusCode::kAlreadyExists));
      }
    }
    ASSERT_NE(server_, nullptr) << "nobody serves, round " << round;
  }
}

TEST_F(ServerTest, AConnectionIsNotRefusedForASoftLimit) {
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 128);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ServerOptions options;
  options.token = kToken;
  ASSERT_OK(Server::Start(options, core_));
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(limit.rlim_cur, limit.rlim_max);
}

TEST_F(ServerTest, OffLoopbackATokenAndWhatProtectsItAreRequired) {
  ServerOptions options;
  options.host = "0.0.0.0";
  EXPECT_THAT(Server::Start(options, core_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("needs a token")));
  options.token = kToken;
  // In clear it would cross the network.
  EXPECT_THAT(Server::Start(options, core_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("names no key")));
  options.security.insecure = true;
  EXPECT_OK(Server::Start(options, core_));
  options.security = {};
  options.security.by_token = true;
  options.token = RandomToken();
  EXPECT_OK(Server::Start(options, core_));
}

TEST_F(ServerTest, AbsentTlsFileIsNamed) {
  ServerOptions options;
  options.security.tls_dir = "/nonexistent";
  EXPECT_THAT(Server::Start(options, core_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("/nonexistent/ca.pem")));
}

}  // namespace
}  // namespace cadre::service
