#include "worker_runtime/generation_store.h"

#include <thread>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/store_limits.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Minutes(1);
constexpr absl::Duration kShort = absl::Milliseconds(50);

TEST(GenerationStoreTest, KeysAndCounters) {
  GenerationStore store(1);
  EXPECT_OK(store.Set("a", "1"));
  EXPECT_EQ(*store.Get("a", kLong), "1");
  EXPECT_EQ(*store.Add("a", 41), 42);
  EXPECT_EQ(*store.Get("a", kLong), "42");
  EXPECT_OK(store.Delete("a"));
  EXPECT_OK(store.Delete("a"));
  EXPECT_THAT(store.Get("a", absl::ZeroDuration()), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(store.Get("a", kShort), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_OK(store.Set("a", "x"));
  EXPECT_THAT(store.Add("a", 1), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(*store.Add("n", INT64_MAX), INT64_MAX);
  EXPECT_THAT(store.Add("n", 1), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(GenerationStoreTest, CompareAndSet_OneWins) {
  GenerationStore store(1);
  EXPECT_EQ(*store.CompareAndSet("a", "", "1"), "1");
  EXPECT_THAT(store.CompareAndSet("a", "", "1"), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(*store.CompareAndSet("a", "1", "2"), "2");
}

TEST(GenerationStoreTest, CommunicatorIdsAreNoKeys) {
  GenerationStore store(1);
  EXPECT_OK(store.PublishCommunicatorId("world", "id"));
  EXPECT_OK(store.PublishCommunicatorId("world", "id"));
  EXPECT_THAT(store.PublishCommunicatorId("world", "other"),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(*store.CommunicatorId("world", kLong), "id");
  EXPECT_THAT(store.Get("world", absl::ZeroDuration()), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(store.CommunicatorId("other", kShort),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("\"other\"")));
}

TEST(GenerationStoreTest, Barrier_LetsAllThroughAndNamesWhoIsMissing) {
  GenerationStore store(3);
  EXPECT_THAT(store.Barrier(1, "b", kShort),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("waits for rank 0, 2")));
  // Who gave up has not entered.
  for (int round = 0; round < 2; ++round) {
    std::thread first([&] { EXPECT_OK(store.Barrier(0, "b", kLong)); });
    std::thread second([&] { EXPECT_OK(store.Barrier(2, "b", kLong)); });
    EXPECT_OK(store.Barrier(1, "b", kLong));
    first.join();
    second.join();
  }
}

TEST(GenerationStoreTest, TheEndWakesWhoeverWaits) {
  GenerationStore store(2);
  std::thread waits([&] {
    EXPECT_THAT(store.Get("a", kLong), StatusIs(absl::StatusCode::kAborted, HasSubstr("over")));
  });
  store.End(absl::AbortedError("over"));
  waits.join();
  EXPECT_THAT(store.Set("a", "1"), StatusIs(absl::StatusCode::kAborted));
  EXPECT_THAT(store.Barrier(0, "b", kLong), StatusIs(absl::StatusCode::kAborted));
}

TEST(GenerationStoreTest, Limits_Hold) {
  GenerationStore store(1);
  EXPECT_THAT(store.Set("", "1"), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(store.Set(std::string(2 * kMaxStoreKeyBytes, 'k'), "1"),
              StatusIs(absl::StatusCode::kInvalidArgument));
  const std::string largest(kMaxStoreValueBytes, 'v');
  EXPECT_THAT(store.Set("a", largest + "v"), StatusIs(absl::StatusCode::kInvalidArgument));
  const size_t fit = kMaxGenerationBytes / kMaxStoreValueBytes;
  for (size_t i = 1; i < fit; ++i) ASSERT_OK(store.Set(absl::StrCat(i), largest));
  EXPECT_OK(store.Set("1", largest));
  EXPECT_THAT(store.Set("more", largest), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_OK(store.Delete("1"));
  EXPECT_OK(store.Set("more", largest));

  GenerationStore many(1);
  for (size_t i = 0; i < kMaxGenerationKeys; ++i) ASSERT_OK(many.Set(absl::StrCat(i), ""));
  EXPECT_THAT(many.Set("more", ""), StatusIs(absl::StatusCode::kResourceExhausted));
}

}  // namespace
}  // namespace cadre
