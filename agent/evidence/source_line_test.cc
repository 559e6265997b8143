#include "agent/evidence/source_line.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

class SourceLineTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(directory_); }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string File(const std::string& text) {
    const std::string path = directory_ + "/train.py";
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  std::string Line(const std::string& path, int number) {
    return SourceLine(getpid(), path, number);
  }

  const std::string directory_ = ::testing::TempDir() + "/source_" + std::to_string(getpid());
};

TEST_F(SourceLineTest, OfAFile) {
  const std::string path = File("import os\n\n    x = 1  \nlast");
  EXPECT_EQ(Line(path, 1), "import os");
  EXPECT_EQ(Line(path, 2), "");
  EXPECT_EQ(Line(path, 3), "x = 1");
  EXPECT_EQ(Line(path, 4), "last");
  EXPECT_EQ(Line(path, 5), "");
  EXPECT_EQ(Line(path, 0), "");
}

TEST_F(SourceLineTest, OfWhatIsNoFileOrIsNotThere) {
  EXPECT_EQ(Line(directory_, 1), "");
  EXPECT_EQ(Line(directory_ + "/none", 1), "");
  const std::string pipe = directory_ + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(Line(pipe, 1), "");
}

TEST_F(SourceLineTest, APathThatIsNotAbsoluteIsTakenFromTheProcesssDirectory) {
  File("here");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(directory_);
  EXPECT_EQ(Line("train.py", 1), "here");
  std::filesystem::current_path(before);
}

TEST_F(SourceLineTest, IsShortUtf8InOneLine) {
  EXPECT_EQ(Line(File("na\xefve = 'x\x01'\n"), 1), "na\xef\xbf\xbdve = 'x\\x01'");
  const std::string text = Line(File(std::string(100000, 'x') + "\nnext"), 1);
  EXPECT_EQ(text.size(), kMaxSourceLineBytes);
  EXPECT_EQ(Line(File(std::string(100000, 'x') + "\nnext"), 2), "next");
}

TEST_F(SourceLineTest, AFileIsReadToItsLimit) {
  EXPECT_EQ(Line(File(std::string(kMaxSourceBytes + (64 << 10), '\n') + "far"),
                 static_cast<int>(kMaxSourceBytes + (64 << 10) + 1)),
            "");
}

}  // namespace
}  // namespace cadre::agent
