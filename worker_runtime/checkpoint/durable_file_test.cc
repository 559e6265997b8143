#include "worker_runtime/checkpoint/durable_file.h"

#include <string>

#include "gtest/gtest.h"

namespace cadre::checkpoint {
namespace {

// The values are from RFC 3720, B.4, and the usual check value.
TEST(Crc32cTest, KnownValues) {
  EXPECT_EQ(ExtendCrc32c(0, ""), 0u);
  EXPECT_EQ(ExtendCrc32c(0, "123456789"), 0xe3069283u);
  EXPECT_EQ(ExtendCrc32c(0, std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(ExtendCrc32c(0, std::string(32, '\xff')), 0x62a8ab43u);
}

TEST(Crc32cTest, PiecesGiveTheSame) {
  std::string bytes;
  for (int i = 0; i < 100; ++i) bytes.push_back(static_cast<char>(i * 37));
  const uint32_t whole = ExtendCrc32c(0, bytes);
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    const absl::string_view view = bytes;
    EXPECT_EQ(ExtendCrc32c(ExtendCrc32c(0, view.substr(0, cut)), view.substr(cut)), whole) << cut;
  }
}

}  // namespace

}  // namespace cadre::checkpoint
