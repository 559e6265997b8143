#include "worker_runtime/checkpoint/store_round.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/checkpoint/copy_parts.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);

TEST(StoreRoundTest, RoundAfterRound) {
  testing::InProcessWorkers workers(3);
  workers.Run([&](Worker& worker) {
    for (int64_t number = 1; number <= 5; ++number) {
      StoreRound round(worker, "test", number, MonoNow() + kLong);
      const std::string order = absl::StrCat("order ", number), end = absl::StrCat("end ", number);
      if (worker.rank() == 0) {
        ASSERT_OK(round.Order(order));
        const auto reports = round.Collect();
        ASSERT_OK(reports);
        EXPECT_OK((*reports)[0]);
        EXPECT_OK((*reports)[1]);
        EXPECT_THAT((*reports)[2], StatusIs(StatusCode::kDataLoss, HasSubstr("rank 2: no good")));
        ASSERT_OK(round.Conclude(end));
      } else {
        EXPECT_EQ(*round.AwaitOrder(), order);
        ASSERT_OK(round.Report(worker.rank() == 2 ? DataLossError("no good") : OkStatus()));
        EXPECT_EQ(*round.AwaitOutcome(), end);
      }
    }
  });
  // Only the last outcome is left of the rounds.
  Worker& worker = workers.worker(0);
  EXPECT_OK(worker.Get("test/5/outcome", kLong));
  for (const char* gone : {"test/5/order", "test/5/report/1", "test/4/outcome"}) {
    EXPECT_THAT(worker.Get(gone, std::chrono::nanoseconds(0)),
                StatusIs(StatusCode::kNotFound, HasSubstr(gone)));
  }
}

TEST(StoreRoundTest, AnErrorIsEveryones) {
  testing::InProcessWorkers workers(2);
  workers.Run([&](Worker& worker) {
    StoreRound round(worker, "test", 1, MonoNow() + kLong);
    if (worker.rank() == 0) {
      ASSERT_OK(round.Order(ResourceExhaustedError("no space")));
    } else {
      EXPECT_THAT(round.AwaitOrder(),
                  StatusIs(StatusCode::kResourceExhausted, HasSubstr("no space")));
    }
  });
}

TEST(StoreRoundTest, WhoDoesNotComeInTime) {
  testing::InProcessWorkers workers(3);
  StoreRound late(workers.worker(0), "test", 1, MonoNow());
  StoreRound in_time(workers.worker(1), "test", 1, MonoNow() + kLong);
  ASSERT_OK(late.Order("order"));
  ASSERT_OK(in_time.AwaitOrder());
  ASSERT_OK(in_time.Report(OkStatus()));
  const auto reports = late.Collect();
  ASSERT_OK(reports);
  EXPECT_OK((*reports)[1]);
  EXPECT_THAT((*reports)[2], StatusIs(StatusCode::kDeadlineExceeded,
                                      AllOf(HasSubstr("rank 2"), HasSubstr("in time"))));
}

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
