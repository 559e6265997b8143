#include "worker_runtime/checkpoint/copy_parts.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace cadre::checkpoint {
namespace {

TEST(CopyParts, IsTheSameByAnyNumberOfThreads) {
  std::vector<std::string> texts;
  std::string whole;
  for (const size_t size : {0, 1, 1000, 7, 0, 4099, 3}) {
    texts.emplace_back(size, static_cast<char>('a' + texts.size()));
    whole += texts.back();
  }
  std::vector<StatePart> parts;
  for (const std::string& text : texts) parts.push_back({text.data(), text.size()});
  for (const int copiers : {1, 2, 3, 4, 13}) {
    std::string copy(whole.size() + 1, '.');
    CopyParts(parts, copy.data(), copiers);
    EXPECT_EQ(copy, whole + ".") << copiers;
  }
}

TEST(CopyParts, OfNothing) { CopyParts({}, nullptr, 3); }

TEST(CopiersFor, OneForALittle_AndNeverMoreThanTheCoresOfAWorker) {
  EXPECT_EQ(CopiersFor(1 << 20, 1), 1);
  EXPECT_EQ(CopiersFor(size_t{1} << 30, 1 << 20), 1);
  EXPECT_GE(CopiersFor(size_t{1} << 30, 1), 1);
  EXPECT_LE(CopiersFor(size_t{1} << 40, 1), 4);
}

}  // namespace
}  // namespace cadre::checkpoint
