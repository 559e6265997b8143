#include "ledger.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::mnist {
namespace {

using ::testing::StartsWith;

// Two containers that share the directory may have processes of the same pid.
TEST(LedgerTest, ProcessesOfTheSamePidWriteDifferentFiles) {
  std::string directory = ::testing::TempDir() + "/ledgers_XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  const auto one = Ledger::Open(directory);
  const auto other = Ledger::Open(directory);
  ASSERT_OK(one);
  ASSERT_OK(other);
  EXPECT_OK(one->Take({}, 0, 1, {3, 5}));
  EXPECT_OK(other->Done({}, 1));
  std::string first_words;
  for (const auto& file : std::filesystem::directory_iterator(directory)) {
    EXPECT_THAT(file.path().filename().string(), StartsWith(std::to_string(getpid()) + "-"));
    std::ifstream lines(file.path());
    std::string word;
    lines >> word;
    first_words += word;
  }
  EXPECT_THAT(first_words, ::testing::AnyOf("takedone", "donetake"));
}

TEST(LedgerTest, WithoutADirectoryNothingIsWritten) {
  const auto ledger = Ledger::Open("");
  ASSERT_OK(ledger);
  EXPECT_OK(ledger->Done({}, 1));
  EXPECT_THAT(Ledger::Open("/nowhere"), StatusIs(StatusCode::kUnavailable));
}

}  // namespace
}  // namespace cadre::mnist
