#include "worker_runtime/sockets/tcp_socket.h"

#include <poll.h>
#include <sys/resource.h>

#include <string>

#include "base/status_matchers.h"

namespace cadre::sockets {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Returns 0, or the errno value of the failed connection.
int OutcomeOf(const ScopedFd& socket) {
  pollfd one = {socket.get(), POLLOUT, 0};
  EXPECT_EQ(poll(&one, 1, 60000), 1);
  return ErrorOf(socket);
}

TEST(EndpointTest, WhoListensCanBeReached_AndWhoDoesNotCannot) {
  auto listener = Listen("127.0.0.1");
  ASSERT_OK(listener);
  const std::string endpoint = EndpointOf(*listener);
  EXPECT_THAT(endpoint, StartsWith("127.0.0.1:"));
  auto socket = StartConnecting(endpoint);
  ASSERT_OK(socket);
  EXPECT_EQ(OutcomeOf(*socket), 0);
  listener->Reset();
  auto late = StartConnecting(endpoint);
  EXPECT_TRUE(!late.ok() || OutcomeOf(*late) == ECONNREFUSED);
}

TEST(EndpointTest, KnowsTheNewerAddresses) {
  const auto listener = Listen("::1");
  if (!listener.ok()) GTEST_SKIP() << "no IPv6 here: " << listener.status();
  EXPECT_THAT(EndpointOf(*listener), StartsWith("[::1]:"));
  const auto socket = StartConnecting(EndpointOf(*listener));
  ASSERT_OK(socket);
  EXPECT_EQ(OutcomeOf(*socket), 0);
}

TEST(EndpointTest, AnotherListenerMayFollowAtThePort_ButNotBeside) {
  auto listener = Listen("127.0.0.1");
  ASSERT_OK(listener);
  EXPECT_EQ(AddressOf(listener->get()), "127.0.0.1");
  const std::string endpoint = EndpointOf(*listener);
  const auto port = static_cast<uint16_t>(std::stoi(endpoint.substr(endpoint.find(':') + 1)));
  EXPECT_THAT(Listen("127.0.0.1", port), StatusIs(StatusCode::kUnavailable, HasSubstr(endpoint)));
  listener->Reset();
  const auto next = Listen("127.0.0.1", port);
  ASSERT_OK(next);
  EXPECT_EQ(EndpointOf(*next), endpoint);
}

TEST(EndpointTest, WhyThereIsNoSocketIsSaid) {
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none = {0, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto listener = Listen("127.0.0.1");
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_THAT(listener, StatusIs(StatusCode::kUnavailable, HasSubstr("Too many open files")));
}

TEST(EndpointTest, RefusesWhatIsNone) {
  for (const char* const text : {"", "10.0.0.1", "host.example:1", "10.0.0.1:http", "[::1]"}) {
    EXPECT_THAT(StartConnecting(text), StatusIs(StatusCode::kInvalidArgument)) << text;
  }
  EXPECT_THAT(Listen("no such host"),
              StatusIs(StatusCode::kUnavailable, HasSubstr("'no such host'")));
}

}  // namespace
}  // namespace cadre::sockets
