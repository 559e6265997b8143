#include "worker_runtime/environment/worker_environment.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "base/status_matchers.h"
#include "base/token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::environment {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class WorkerEnvironmentTest : public ::testing::Test {
 protected:
  Result<WorkerEnvironment> Read() {
    return ReadWorkerEnvironment([this](const char* name) -> const char* {
      const auto found = variables_.find(name);
      return found == variables_.end() ? nullptr : found->second.c_str();
    });
  }

  std::string WriteToken(const std::string& content) {
    const std::string path = ::testing::TempDir() + "/token";
    std::ofstream(path, std::ios::binary) << content;
    chmod(path.c_str(), 0600);
    return path;
  }

  std::map<std::string, std::string> variables_ = {
      {"CADRE_AGENT", "/run/agent.sock"}, {"CADRE_GENERATION", "7"}, {"RANK", "3"}};
};

TEST_F(WorkerEnvironmentTest, ReadsWhatIsThere) {
  variables_["CADRE_TOKEN_FILE"] = WriteToken("s3cret-s3cret-s3cret\n");
  variables_["CADRE_PROGRESS_FD"] = "9";
  const auto environment = Read();
  ASSERT_OK(environment);
  EXPECT_EQ(environment->agent_socket, "/run/agent.sock");
  EXPECT_EQ(environment->generation, 7u);
  EXPECT_EQ(environment->rank, 3);
  EXPECT_EQ(environment->token, "s3cret-s3cret-s3cret");
  EXPECT_EQ(environment->progress_fd, 9);
}

TEST_F(WorkerEnvironmentTest, TokenAndProgressMayBeAbsent) {
  const auto environment = Read();
  ASSERT_OK(environment);
  EXPECT_EQ(environment->token, "");
  EXPECT_EQ(environment->progress_fd, -1);
}

TEST_F(WorkerEnvironmentTest, SaysWhenCadreDidNotStartIt) {
  variables_.erase("CADRE_AGENT");
  EXPECT_THAT(Read(), StatusIs(StatusCode::kFailedPrecondition, HasSubstr("not started by Cadre")));
}

TEST_F(WorkerEnvironmentTest, NamesTheVariableThatMakesNoSense) {
  variables_["RANK"] = "-1";
  EXPECT_THAT(Read(), StatusIs(StatusCode::kInvalidArgument, HasSubstr("RANK is \"-1\"")));
  variables_["RANK"] = "3";
  variables_["CADRE_GENERATION"] = "last";
  EXPECT_THAT(Read(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("CADRE_GENERATION is \"last\"")));
  variables_.erase("CADRE_GENERATION");
  EXPECT_THAT(Read(),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("CADRE_GENERATION is not set")));
}

TEST_F(WorkerEnvironmentTest, NamesTheTokenFileButNotTheToken) {
  variables_["CADRE_TOKEN_FILE"] = "/nowhere/token";
  EXPECT_THAT(Read(), StatusIs(StatusCode::kNotFound, HasSubstr("/nowhere/token")));
  variables_["CADRE_TOKEN_FILE"] = WriteToken("s3cret-s3cret-s3cret\x01");
  EXPECT_THAT(Read(), StatusIs(StatusCode::kInvalidArgument,
                               AllOf(HasSubstr("CADRE_TOKEN_FILE"), HasSubstr("printable"),
                                     Not(HasSubstr("s3cret-s3cret-s3cret")))));
  chmod(WriteToken("s3cret-s3cret-s3cret").c_str(), 0644);
  EXPECT_THAT(Read(), StatusIs(StatusCode::kPermissionDenied, HasSubstr("CADRE_TOKEN_FILE")));
}

class SecretTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char directory[] = "/tmp/cadre_secret_XXXXXX";
    ASSERT_NE(mkdtemp(directory), nullptr);
    directory_ = directory;
    setenv("XDG_RUNTIME_DIR", directory, 1);
  }
  void TearDown() override {
    unsetenv("XDG_RUNTIME_DIR");
    std::filesystem::remove_all(directory_);
  }

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
