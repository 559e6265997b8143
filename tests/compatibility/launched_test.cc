// Ranks that no launcher of ours started, but somebody who set their variables: a shell's, or the
// program's own.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/scoped_fd.h"
#include "base/status_matchers.h"
#include "base/token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/compatibility/launched_line.h"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Variables = std::map<std::string, std::string>;

constexpr absl::Duration kTimeout = absl::Minutes(2);

class LaunchedTest : public ::testing::Test {
 protected:
  Variables Of(int rank, int size) {
    return {{"RANK", absl::StrCat(rank)},
            {"WORLD_SIZE", absl::StrCat(size)},
            {"MASTER_ADDR", "127.0.0.1"},
            {"MASTER_PORT", absl::StrCat(port_)},
            {"XDG_RUNTIME_DIR", runtime_}};
  }
  static std::unique_ptr<Process> Start(const Variables& variables,
                                        const std::vector<std::string>& arguments = {}) {
    return StartProgram(kLaunchedProbe, arguments, variables);
  }
  static void ExpectFails(const Variables& variables, const ::testing::Matcher<std::string>& said) {
    const auto process = Start(variables);
    EXPECT_EQ(process->Wait(kTimeout), 1);
    EXPECT_THAT(process->standard_error(), said);
  }
  // A new file with a secret.
  std::string Secret(const std::string& name, const std::string& token) {
    const std::string path = absl::StrCat(runtime_, "/", name);
    EXPECT_OK(WriteTokenFile(path, token));
    return path;
  }
  // Rank 0's.
  sockaddr_in Address() const {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port_));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  ScopedFd Stranger() const {
    ScopedFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = Address();
    if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      socket.Reset();
    }
    return socket;
  }

  const int port_ = FreePort();
  const std::string runtime_ = MakeTempDir("run");
};

TEST_F(LaunchedTest, FourVariablesAreEnough) {
  std::vector<std::unique_ptr<Process>> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.push_back(Start(Of(rank, 3)));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ranks[rank]->Wait(kTimeout), 0) << OutputOf(*ranks[rank]);
    EXPECT_THAT(ranks[rank]->standard_output(),
                HasSubstr(LaunchedLine(rank, 3, 3) + "at=127.0.0.1"));
  }
}

TEST_F(LaunchedTest, TheProgramMaySayItItself) {
  std::vector<std::unique_ptr<Process>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(Start({{"XDG_RUNTIME_DIR", runtime_}, {"RANK", "7"}},
                          {"--at", absl::StrCat(rank), "2", absl::StrCat("localhost:", port_)}));
  }
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ranks[rank]->Wait(kTimeout), 0) << OutputOf(*ranks[rank]);
    EXPECT_THAT(ranks[rank]->standard_output(), HasSubstr(LaunchedLine(rank, 2, 2)));
  }
}

TEST_F(LaunchedTest, NobodyStartedIt) {
  ExpectFails({}, AllOf(HasSubstr("FAILED_PRECONDITION"),
                        HasSubstr("cadre run --nproc-per-node N PROGRAM")));
}

TEST_F(LaunchedTest, WhatIsMissingOrContradictsIsNamed) {
  Variables variables = Of(1, 2);
  variables.erase("MASTER_PORT");
  ExpectFails(variables, HasSubstr("MASTER_PORT is not"));
  ExpectFails(Of(2, 2), AllOf(HasSubstr("RANK is 2"), HasSubstr("WORLD_SIZE is 2")));
  variables = Of(0, 2);
  variables["OMPI_COMM_WORLD_RANK"] = "1";
  variables["OMPI_COMM_WORLD_SIZE"] = "2";
  ExpectFails(variables, AllOf(HasSubstr("RANK is 0"), HasSubstr("OMPI_COMM_WORLD_RANK is 1")));
}

TEST_F(LaunchedTest, AnotherMachineNeedsASecret) {
  Variables variables = Of(1, 2);
  // For documentation: nobody has it.
  variables["MASTER_ADDR"] = "192.0.2.1";
  ExpectFails(variables, AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("CADRE_SECRET_FILE"),
                               HasSubstr("cadre token new FILE")));
}

TEST_F(LaunchedTest, AWrongSecretIsSaidToWhoHasIt) {
  Variables first = Of(0, 2), second = Of(1, 2);
  first["CADRE_SECRET_FILE"] = Secret("one", "the first secret of these ranks");
  second["CADRE_SECRET_FILE"] = Secret("two", "the other secret of these ranks");
  const auto rank0 = Start(first);
  ExpectFails(second, AllOf(HasSubstr("PERMISSION_DENIED"), HasSubstr("CADRE_SECRET_FILE"),
                            Not(HasSubstr("the other secret"))));
  // Rank 0 waits for the right one.
  second["CADRE_SECRET_FILE"] = first["CADRE_SECRET_FILE"];
  const auto rank1 = Start(second);
  EXPECT_EQ(rank1->Wait(kTimeout), 0) << OutputOf(*rank1);
  EXPECT_EQ(rank0->Wait(kTimeout), 0) << OutputOf(*rank0);
}

// Fault (store): More than 64 clients that do not authenticate connect to the store that rank 0
// serves under another launcher -> No rank waits longer than half of the 10 s that they are given;
// then they are dropped, and a displaced rank connects again
TEST_F(LaunchedTest, StrangersCostNobodyAnything) {
  const auto rank0 = Start(Of(0, 2));
  const absl::Time until = absl::Now() + kTimeout;
  std::vector<ScopedFd> strangers;
  while (strangers.size() < 100 && absl::Now() < until) {
    ScopedFd stranger = Stranger();
    if (!stranger.ok()) {
      absl::SleepFor(absl::Milliseconds(10));
      continue;
    }
    // Some say nothing, some something.
    const std::string garbage(strangers.size() % 3 * 100, '\xff');
    EXPECT_EQ(send(stranger.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(garbage.size()));
    strangers.push_back(std::move(stranger));
  }
  ASSERT_EQ(strangers.size(), 100u) << OutputOf(*rank0);
  const auto rank1 = Start(Of(1, 2));
  EXPECT_EQ(rank1->Wait(absl::Seconds(20)), 0) << OutputOf(*rank1);
  EXPECT_EQ(rank0->Wait(kTimeout), 0) << OutputOf(*rank0);
}

TEST_F(LaunchedTest, APortThatIsTakenIsNamed) {
  const ScopedFd taken(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = Address();
  ASSERT_EQ(bind(taken.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(taken.get(), 1), 0);
  ExpectFails(Of(0, 2), HasSubstr(absl::StrCat("cannot serve the others at 127.0.0.1:", port_)));
}

// Fault (store): Rank 0 dies under another launcher -> The other ranks' calls end with an error
// that names it
TEST_F(LaunchedTest, ARankThatDiesHangsNobody) {
  std::vector<std::unique_ptr<Process>> ranks;
  for (int rank = 0; rank < 2; ++rank) ranks.push_back(Start(Of(rank, 2), {"--kill", "0"}));
  EXPECT_EQ(ranks[0]->Wait(kTimeout), 128 + SIGKILL) << OutputOf(*ranks[0]);
  EXPECT_EQ(ranks[1]->Wait(kTimeout), 1) << OutputOf(*ranks[1]);
  EXPECT_THAT(ranks[1]->standard_error(), HasSubstr("rank 0, which serves the store at"));
}

}  // namespace
}  // namespace cadre
