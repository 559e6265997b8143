#include "worker_runtime/environment/worker_environment.h"

#include <sys/stat.h>

#include <fstream>
#include <map>

#include "base/status_matchers.h"

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

}  // namespace
}  // namespace cadre::environment
