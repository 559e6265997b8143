#include "rpc/frames/frame_reader.h"

#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "base/status_matchers.h"

namespace cadre::frames {
namespace {

constexpr size_t kLimit = 1000;

class FrameReaderTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends_), 0); }
  void TearDown() override {
    close(ends_[0]);
    close(ends_[1]);
  }
  void Say(const std::string& bytes) {
    ASSERT_EQ(send(ends_[0], bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }
  bool Read() {
    const absl::StatusOr<bool> read = reader_.ReadFrom(ends_[1]);
    EXPECT_OK(read);
    return read.ok() && *read;
  }
  // The next frame, or "none".
  std::string Next() {
    absl::string_view frame;
    const absl::StatusOr<bool> found = reader_.Next(&frame);
    EXPECT_OK(found);
    return found.ok() && *found ? std::string(frame) : "none";
  }

  int ends_[2] = {-1, -1};
  FrameReader reader_{kLimit};
};

TEST_F(FrameReaderTest, SeveralInOneRead) {
  std::string bytes;
  AppendFrame("token", &bytes);
  AppendFrame("", &bytes);
  AppendFrame("request", &bytes);
  Say(bytes);
  EXPECT_TRUE(Read());
  EXPECT_EQ(Next(), "token");
  EXPECT_EQ(Next(), "");
  EXPECT_EQ(Next(), "request");
  EXPECT_EQ(Next(), "none");
  EXPECT_FALSE(Read());
}

TEST_F(FrameReaderTest, OneInManyReads) {
  std::string bytes;
  AppendFrame(std::string(300, 'x'), &bytes);
  for (const char byte : bytes) {
    EXPECT_EQ(Next(), "none");
    Say(std::string(1, byte));
    EXPECT_TRUE(Read());
  }
  EXPECT_EQ(Next(), std::string(300, 'x'));
}

TEST_F(FrameReaderTest, OneOverTheLimitIsRefusedByItsLength) {
  std::string bytes;
  AppendFrame(std::string(kLimit + 1, 'x'), &bytes);
  Say(bytes.substr(0, 4));
  EXPECT_TRUE(Read());
  absl::string_view frame;
  EXPECT_THAT(reader_.Next(&frame), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(FrameReaderTest, TheLargestIsAccepted) {
  std::string bytes;
  AppendFrame(std::string(kLimit, 'x'), &bytes);
  reader_.Append(bytes);
  EXPECT_EQ(Next(), std::string(kLimit, 'x'));
}

TEST_F(FrameReaderTest, TheEndOfTheConnectionComesBehindWhatWasSaid) {
  std::string bytes;
  AppendFrame("last", &bytes);
  Say(bytes);
  shutdown(ends_[0], SHUT_WR);
  EXPECT_TRUE(Read());
  EXPECT_EQ(Next(), "last");
  EXPECT_THAT(reader_.ReadFrom(ends_[1]), StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace cadre::frames
