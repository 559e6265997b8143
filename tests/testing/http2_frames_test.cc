#include "tests/testing/http2_frames.h"

#include <zlib.h>

#include <string>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

namespace cadre::http2 {
namespace {

TEST(Http2FramesTest, AFrameIsReadAsItWasWritten) {
  std::string bytes;
  AppendFrame(Frame::kHeaders, kEndHeaders | kEndStream, 77, "block", &bytes);
  const auto header = ParseFrameHeader(bytes);
  ASSERT_TRUE(header.has_value());
  EXPECT_EQ(header->length, 5u);
  EXPECT_EQ(header->type, Frame::kHeaders);
  EXPECT_EQ(header->flags, 5);
  EXPECT_EQ(header->stream, 77u);
  EXPECT_EQ(bytes.substr(kFrameHeaderBytes), "block");
  EXPECT_FALSE(ParseFrameHeader(absl::string_view(bytes).substr(0, 8)).has_value());
}

// The examples are in RFC 7541, C.1.
TEST(Http2FramesTest, IntegersAreThoseOfTheStandardsExamples) {
  std::string block;
  AppendInteger(0, 5, 10, &block);
  AppendInteger(0, 5, 1337, &block);
  AppendInteger(0, 8, 42, &block);
  EXPECT_EQ(block, "\x0a\x1f\x9a\x0a\x2a");
}

TEST(Http2FramesTest, TheStatusIsFoundWithAndWithoutHuffmansCode) {
  std::string plain;
  AppendLiteral("grpc-status", "16", &plain);
  AppendLiteral("grpc-message", "no token", &plain);
  EXPECT_EQ(GrpcStatusIn(plain), 16);
  EXPECT_EQ(GrpcStatusIn("\x40\x88\x9a\xca\xc8\xb2\x12\x34\xda\x8f\x01"
                         "0"),
            0);
  EXPECT_FALSE(GrpcStatusIn("grpc-status").has_value());
  EXPECT_FALSE(GrpcStatusIn("").has_value());
}

TEST(Http2FramesTest, CompressedZeroesInflateToAsManyAsTheySay) {
  constexpr int kMebibytes = 3;
  const std::string bytes = GzipOfZeroes(kMebibytes);
  EXPECT_LT(bytes.size(), 8192u);
  std::string inflated((kMebibytes << 20) + 1, 'x');
  z_stream stream = {};
  ASSERT_EQ(inflateInit2(&stream, MAX_WBITS + 16), Z_OK);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(&inflated[0]);
  stream.avail_out = static_cast<uInt>(inflated.size());
  // inflate() checks the sum and the length at the end, too.
  EXPECT_EQ(inflate(&stream, Z_FINISH), Z_STREAM_END);
  EXPECT_EQ(stream.avail_in, 0u);
  inflated.resize(stream.total_out);
  inflateEnd(&stream);
  EXPECT_EQ(inflated, std::string(kMebibytes << 20, '\0'));
}

}  // namespace
}  // namespace cadre::http2
