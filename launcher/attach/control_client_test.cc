#include "launcher/attach/control_client.h"

#include <stdlib.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>

#include "base/status_matchers.h"
#include "base/token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

class FindServersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    for (const char* name : {"agents", "users", "other"}) {
      ASSERT_OK(WriteTokenFile(Path(name), RandomToken()));
    }
  }
  ~FindServersTest() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }
  // The file of the token with which the server is asked.
  std::string TokenFile(std::map<std::string, std::string> environment, const Parsed& parsed = {}) {
    environment["CADRE_SERVER"] = "127.0.0.1:1";
    const auto servers = FindServers(Settings(parsed, std::move(environment), ControlFlags()));
    EXPECT_OK(servers);
    return servers.ok() ? servers->token.file : "";
  }

  std::string directory_ = ::testing::TempDir() + "/servers_XXXXXX";
};

TEST_F(FindServersTest, ATaskOfAStepHasItsUsersTokenBesideThatOfItsAgent) {
  const std::map<std::string, std::string> task = {{"CADRE_AGENT", "/run/socket"},
                                                   {"CADRE_TOKEN_FILE", Path("agents")},
                                                   {"CADRE_USER_TOKEN_FILE", Path("users")}};
  EXPECT_EQ(TokenFile(task), Path("users"));
  Parsed parsed;
  parsed.flags["token-file"] = {Path("other")};
  EXPECT_EQ(TokenFile(task, parsed), Path("other"));
  EXPECT_EQ(TokenFile({{"CADRE_TOKEN_FILE", Path("users")}}), Path("users"));
}

}  // namespace
}  // namespace cadre::launcher
