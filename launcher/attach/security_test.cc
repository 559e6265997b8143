#include "launcher/attach/security.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/bearer_token.h"
#include "base/status_matchers.h"
#include "base/token.h"

namespace cadre::launcher {
namespace {

using ::testing::HasSubstr;

constexpr char kChosen[] = "a secret that somebody chose";

TEST(SecurityTest, ATokenThatNamesAKeyMeansTlsWhereverTheServerIs) {
  const std::string secret = RandomToken();
  for (const std::string& token : {secret, UserToken(secret, 7, "ann", absl::InfiniteFuture())}) {
    for (const bool loopback : {false, true}) {
      const auto security = SecurityOf("", false, {token, "file"}, loopback);
      ASSERT_OK(security);
      EXPECT_TRUE(security->by_token);
      EXPECT_FALSE(security->insecure);
    }
  }
}

// Fault (access): A secret that a person chose is used off loopback -> It is refused, and the error
// says what to do instead
TEST(SecurityTest, AChosenSecretIsForLoopbackAlone) {
  const auto here = SecurityOf("", false, {kChosen, "file"}, /*loopback=*/true);
  ASSERT_OK(here);
  EXPECT_FALSE(here->by_token);
  EXPECT_THAT(SecurityOf("", false, {kChosen, "file"}, /*loopback=*/false),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("make one with 'cadre token new FILE' (a user's with --user), use "
                                 "certificates (--tls-dir)")));
}

TEST(SecurityTest, FlagsSayOtherwise) {
  const auto insecure = SecurityOf("", true, {RandomToken()}, /*loopback=*/false);
  ASSERT_OK(insecure);
  EXPECT_FALSE(insecure->by_token);
  EXPECT_TRUE(insecure->insecure);
  // A server also serves TLS if it has a key.
  EXPECT_TRUE(ForServer(*insecure, {RandomToken()}).by_token);
  EXPECT_FALSE(ForServer(*insecure, {kChosen}).by_token);
  const auto mutual = SecurityOf("certificates", false, {kChosen}, /*loopback=*/false);
  ASSERT_OK(mutual);
  EXPECT_EQ(mutual->tls_dir, "certificates");
  EXPECT_FALSE(mutual->by_token);
  EXPECT_THAT(
      SecurityOf("certificates", true, {kChosen}, false),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("leave one of the two flags out")));
}

class LoopbackTokenTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/token_XXXXXX";
    ASSERT_NE(mkdtemp(&name[0]), nullptr);
    directory_ = name;
    const char* const before = getenv("XDG_RUNTIME_DIR");
    if (before != nullptr) runtime_dir_before_ = before;
    setenv("XDG_RUNTIME_DIR", directory_.c_str(), 1);
  }
  void TearDown() override {
    EndLoopbackTokens();
    unsetenv("XDG_RUNTIME_DIR");
    if (runtime_dir_before_.has_value()) {
      setenv("XDG_RUNTIME_DIR", runtime_dir_before_->c_str(), 1);
    }
  }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }
  std::string Own() const { return Path("cadre-" + std::to_string(geteuid())); }
  std::string TokenFile(int port) const {
    return Own() + "/rdzv-" + std::to_string(port) + ".token";
  }
  static bool Exists(const std::string& path) {
    return std::filesystem::exists(std::filesystem::symlink_status(path));
  }

  std::string directory_;
  std::optional<std::string> runtime_dir_before_;
};

TEST_F(LoopbackTokenTest, AllProcessesGetTheSame_OfEachPortItsOwn) {
  const auto first = LoopbackTokenUse::Begin(29400), second = LoopbackTokenUse::Begin(29400),
             other = LoopbackTokenUse::Begin(29401);
  ASSERT_OK(first);
  ASSERT_OK(second);
  ASSERT_OK(other);
  EXPECT_EQ((*first)->token(), (*second)->token());
  EXPECT_NE((*first)->token(), (*other)->token());
  const auto of_process = LoopbackToken(29400);
  ASSERT_OK(of_process);
  EXPECT_EQ(*of_process, (*first)->token());
}

TEST_F(LoopbackTokenTest, TheLastUserRemovesTheFile) {
  auto first = LoopbackTokenUse::Begin(29400), second = LoopbackTokenUse::Begin(29400);
  ASSERT_OK(first);
  ASSERT_OK(second);
  const std::string token = (*first)->token();
  first->reset();
  EXPECT_TRUE(Exists(TokenFile(29400)));
  EXPECT_EQ(*LoopbackToken(29400), token);
  second->reset();
  EXPECT_TRUE(Exists(TokenFile(29400)));
  EndLoopbackTokens();
  EXPECT_FALSE(Exists(TokenFile(29400)));
  EXPECT_NE(*LoopbackToken(29400), token);
}

TEST_F(LoopbackTokenTest, WhatTheKilledLeftIsRemovedByWhoComesNext_AndNothingElse) {
  const auto used = LoopbackTokenUse::Begin(1);
  ASSERT_OK(used);
  std::ofstream(TokenFile(2)) << std::string(64, 'a') << "\n";
  std::ofstream(Path("target")) << "mine\n";
  ASSERT_EQ(symlink(Path("target").c_str(), TokenFile(3).c_str()), 0);
  std::ofstream(Own() + "/rdzv-x.token") << "another's\n";
  ASSERT_EQ(mkfifo(TokenFile(4).c_str(), 0600), 0);
  ASSERT_OK(LoopbackToken(5));
  EXPECT_TRUE(Exists(TokenFile(1)));
  EXPECT_FALSE(Exists(TokenFile(2)));
  EXPECT_TRUE(Exists(TokenFile(3)));
  EXPECT_TRUE(Exists(Path("target")));
  EXPECT_TRUE(Exists(Own() + "/rdzv-x.token"));
  EXPECT_TRUE(Exists(TokenFile(4)));
  EXPECT_TRUE(Exists(TokenFile(5)));
}

TEST_F(LoopbackTokenTest, WhoUsesItAtOneTimeHasTheSame_HoweverManyComeAndGo) {
  constexpr int kThreads = 4, kTurns = 200;
  std::mutex mutex;
  std::multiset<std::string> in_use;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < kTurns; ++turn) {
        auto use = LoopbackTokenUse::Begin(29400);
        ASSERT_OK(use);
        const std::string token = (*use)->token();
        {
          const std::lock_guard<std::mutex> lock(mutex);
          in_use.insert(token);
          EXPECT_EQ(in_use.count(token), in_use.size());
        }
        {
          const std::lock_guard<std::mutex> lock(mutex);
          in_use.erase(in_use.find(token));
        }
        use->reset();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(Exists(TokenFile(29400)));
}

TEST_F(LoopbackTokenTest, DirectoryOpenToOthersIsRefused) {
  ASSERT_EQ(mkdir(Own().c_str(), 0700), 0);
  ASSERT_EQ(chmod(Own().c_str(), 0777), 0);
  EXPECT_THAT(LoopbackToken(29400),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("mode 700")));
}

TEST_F(LoopbackTokenTest, DirectoryThatIsALinkIsRefused) {
  ASSERT_EQ(mkdir(Path("elsewhere").c_str(), 0700), 0);
  ASSERT_EQ(symlink(Path("elsewhere").c_str(), Own().c_str()), 0);
  EXPECT_THAT(LoopbackToken(29400), StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST_F(LoopbackTokenTest, FileThatIsALinkIsRefused) {
  std::ofstream(Path("target")) << std::string(64, 'a') << "\n";
  ASSERT_EQ(mkdir(Own().c_str(), 0700), 0);
  ASSERT_EQ(symlink(Path("target").c_str(), TokenFile(29400).c_str()), 0);
  EXPECT_THAT(LoopbackToken(29400),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is a symbolic link")));
}

TEST_F(LoopbackTokenTest, RuntimeDirectoryThatIsNotThereIsPassedOver) {
  setenv("XDG_RUNTIME_DIR", Path("gone").c_str(), 1);
  EXPECT_OK(LoopbackToken(1));
}

}  // namespace
}  // namespace cadre::launcher
