#include "base/token.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/status_matchers.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class TokenTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/token_XXXXXX";
    ASSERT_NE(mkdtemp(&name[0]), nullptr);
    directory_ = name;
  }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }

  std::string File(const std::string& content, mode_t mode = 0600) const {
    const std::string path = Path("file");
    std::ofstream(path) << content;
    chmod(path.c_str(), mode);
    return path;
  }

  std::string directory_;
};

TEST_F(TokenTest, RandomTokensAreLongAndDiffer) {
  EXPECT_THAT(RandomToken(), MatchesRegex("[0-9a-f]{64}"));
  EXPECT_NE(RandomToken(), RandomToken());
}

TEST_F(TokenTest, WhatIsWrittenIsRead) {
  ASSERT_OK(WriteTokenFile(Path("t"), "0123456789abcdef"));
  ASSERT_OK(WriteTokenFile(Path("t"), "fedcba9876543210"));
  const absl::StatusOr<std::string> token = ReadTokenFile(Path("t"));
  ASSERT_OK(token);
  EXPECT_EQ(*token, "fedcba9876543210");
  struct stat info;
  ASSERT_EQ(stat(Path("t").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(TokenTest, WhatIsThereIsNotCreatedAnew) {
  ASSERT_OK(CreateTokenFile(Path("t"), "0123456789abcdef"));
  EXPECT_THAT(CreateTokenFile(Path("t"), "fedcba9876543210"),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(Path("t"))));
  const absl::StatusOr<std::string> token = ReadTokenFile(Path("t"));
  ASSERT_OK(token);
  EXPECT_EQ(*token, "0123456789abcdef");
  // A symbolic link counts as existing, even if it leads nowhere.
  ASSERT_EQ(symlink(Path("none").c_str(), Path("link").c_str()), 0);
  EXPECT_THAT(CreateTokenFile(Path("link"), "0123456789abcdef"),
              StatusIs(absl::StatusCode::kAlreadyExists));
}

TEST_F(TokenTest, FileOpenToOthersIsRefused) {
  EXPECT_THAT(ReadTokenFile(File("0123456789abcdef", 0644)),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("chmod 600 ")));
}

TEST_F(TokenTest, OnlyRootMayLetAGroupReadIt) {
  const auto token = ReadTokenFile(File("0123456789abcdef", 0640));
  EXPECT_EQ(token.ok(), geteuid() == 0) << token.status();
  EXPECT_FALSE(ReadTokenFile(File("0123456789abcdef", 0660)).ok());
}

TEST_F(TokenTest, AbsentFile) {
  EXPECT_THAT(ReadTokenFile(Path("none")), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(TokenTest, SymbolicLinkIsRefused) {
  ASSERT_EQ(symlink(File("0123456789abcdef").c_str(), Path("link").c_str()), 0);
  EXPECT_THAT(ReadTokenFile(Path("link")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("symbolic link")));
}

TEST_F(TokenTest, PipeIsRefusedAtOnce) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(ReadTokenFile(Path("pipe")), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(TokenTest, LineEndsAreNoPartOfIt) {
  for (const char* end : {"\n", "\r\n", "\n\n", ""}) {
    const auto token = ReadTokenFile(File(std::string(40, 'a') + end));
    ASSERT_OK(token);
    EXPECT_EQ(*token, std::string(40, 'a'));
  }
}

TEST_F(TokenTest, WhatAHeaderCannotHoldIsRefused) {
  for (const char* odd : {"\t", "\xe9", "\n"}) {
    EXPECT_THAT(ReadTokenFile(File(std::string(20, 'a') + odd + std::string(20, 'b'))),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("it holds a byte 0x")));
  }
}

TEST_F(TokenTest, SizeLimits) {
  EXPECT_THAT(ReadTokenFile(File(std::string(kTokenBytesMin - 1, 'x') + "\n")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("16 to 4096")));
  EXPECT_OK(ReadTokenFile(File(std::string(kTokenBytesMin, 'x'))));
  EXPECT_OK(ReadTokenFile(File(std::string(kTokenBytesMax, 'x') + "\n")));
  EXPECT_THAT(ReadTokenFile(File(std::string(kTokenBytesMax + 1, 'x'))),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(WriteTokenFile(Path("t"), "short"), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(TokenTest, AllWhoAskAtOnceGetOneToken) {
  std::vector<absl::StatusOr<std::string>> tokens(16, std::string());
  std::vector<std::thread> threads;
  for (auto& token : tokens) threads.emplace_back([&] { token = SharedToken(Path("shared")); });
  for (std::thread& thread : threads) thread.join();
  std::set<std::string> distinct;
  for (const auto& token : tokens) {
    ASSERT_OK(token);
    distinct.insert(*token);
  }
  EXPECT_EQ(distinct.size(), 1u);
}

TEST_F(TokenTest, FromADescriptor_OneLineIsTaken) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const std::string said = "0123456789abcdef\nmore";
  ASSERT_EQ(write(ends[1], said.data(), said.size()), static_cast<ssize_t>(said.size()));
  const absl::StatusOr<std::string> token = ReadTokenFrom(ends[0]);
  ASSERT_OK(token);
  EXPECT_EQ(*token, "0123456789abcdef");
  close(ends[1]);
  // "more" is too short for a token.
  EXPECT_THAT(ReadTokenFrom(ends[0]), StatusIs(absl::StatusCode::kInvalidArgument));
  close(ends[0]);
}

TEST(EqualConstantTime, ComparesContentAndLength) {
  EXPECT_TRUE(EqualConstantTime("", ""));
  EXPECT_TRUE(EqualConstantTime("abc", "abc"));
  EXPECT_FALSE(EqualConstantTime("abc", "abd"));
  EXPECT_FALSE(EqualConstantTime("abc", "abcd"));
  EXPECT_FALSE(EqualConstantTime("abc", ""));
}

}  // namespace
}  // namespace cadre
