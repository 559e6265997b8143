#include "worker_runtime/store/sealed_frames.h"

#include "base/status_matchers.h"
#include "rpc/frames/frame_reader.h"

namespace cadre::store {
namespace {

using ::testing::HasSubstr;

const wire::RecordKeys kKeys = {std::string(32, 'a'), std::string(32, 'b')};

std::string FrameOf(absl::string_view content) {
  std::string frame;
  frames::AppendFrame(content, &frame);
  return frame;
}

std::string ContentOf(const std::string& frame) {
  frames::FrameReader reader(1000);
  reader.Append(frame);
  absl::string_view content;
  EXPECT_TRUE(reader.Next(&content).value_or(false));
  return std::string(content);
}

TEST(SealedFramesTest, AreReadByTheOtherSideAlone) {
  SealedFrames near(kKeys), far({kKeys.incoming, kKeys.outgoing});
  for (const char* const content : {"a key of the store", ""}) {
    const std::string sealed = ContentOf(near.Seal(FrameOf(content)));
    EXPECT_THAT(sealed, ::testing::Not(HasSubstr("key")));
    const Result<std::string> opened = far.Open(sealed);
    ASSERT_OK(opened);
    EXPECT_EQ(*opened, content);
  }
  const Result<std::string> back = near.Open(ContentOf(far.Seal(FrameOf("its value"))));
  ASSERT_OK(back);
  EXPECT_EQ(*back, "its value");
}

TEST(SealedFramesTest, WhatIsAlteredRepeatedOrCutIsNotTaken) {
  const auto altered = StatusIs(StatusCode::kUnavailable, HasSubstr("altered on its way"));
  SealedFrames near(kKeys);
  const std::string sealed = ContentOf(near.Seal(FrameOf("content")));
  for (size_t at = 0; at < sealed.size(); ++at) {
    SealedFrames far({kKeys.incoming, kKeys.outgoing});
    std::string other = sealed;
    other[at] ^= 1;
    EXPECT_THAT(far.Open(other), altered) << at;
  }
  SealedFrames far({kKeys.incoming, kKeys.outgoing});
  EXPECT_OK(far.Open(sealed));
  EXPECT_THAT(far.Open(sealed), altered);
  EXPECT_THAT(far.Open("short"), altered);
}

}  // namespace
}  // namespace cadre::store
