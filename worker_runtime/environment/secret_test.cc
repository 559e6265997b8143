#include "worker_runtime/environment/secret.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>

#include "base/status_matchers.h"
#include "base/token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::environment {
namespace {

using ::testing::HasSubstr;

class SecretTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char directory[] = "/tmp/cadre_secret_XXXXXX";
    ASSERT_NE(mkdtemp(directory), nullptr);
    directory_ = directory;
    setenv("XDG_RUNTIME_DIR", directory, 1);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  Result<Secret> Read(const std::string& file) {
    return ReadSecret([&](const char* name) -> const char* {
      return file.empty() || std::string(name) != "CADRE_SECRET_FILE" ? nullptr : file.c_str();
    });
  }

  std::string directory_;
};

TEST_F(SecretTest, ThisUsersOwnIsTheSameEachTime) {
  const auto first = Read(""), second = Read("");
  ASSERT_OK(first);
  ASSERT_OK(second);
  EXPECT_EQ(first->token, second->token);
  EXPECT_GE(first->token.size(), kTokenBytesMin);
  EXPECT_FALSE(first->from_file);
}

TEST_F(SecretTest, TheFilesContentCounts) {
  const std::string path = directory_ + "/secret";
  ASSERT_OK(WriteTokenFile(path, "0123456789abcdef"));
  const auto secret = Read(path);
  ASSERT_OK(secret);
  EXPECT_EQ(secret->token, "0123456789abcdef");
  EXPECT_TRUE(secret->from_file);
  chmod(path.c_str(), 0644);
  EXPECT_THAT(Read(path), StatusIs(StatusCode::kPermissionDenied, HasSubstr("CADRE_SECRET_FILE")));
  EXPECT_THAT(Read(directory_ + "/none"),
              StatusIs(StatusCode::kNotFound, HasSubstr("CADRE_SECRET_FILE")));
}

}  // namespace
}  // namespace cadre::environment
