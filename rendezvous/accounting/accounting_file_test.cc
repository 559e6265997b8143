#include "rendezvous/accounting/accounting_file.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/accounting/accounting_for_test.h"
#include "rendezvous/log/sqlite_file.h"

namespace cadre::accounting {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class AccountingFileTest : public AccountingRig {
 protected:
  AccountingFile& file() {
    if (file_ == nullptr) {
      auto opened = AccountingFile::Open(path_);
      EXPECT_THAT(opened, IsOk());
      file_ = *std::move(opened);
    }
    return *file_;
  }
  void Write(const std::vector<v1::AccountedJob>& jobs) {
    std::vector<const v1::AccountedJob*> rows;
    for (const v1::AccountedJob& job : jobs) rows.push_back(&job);
    ASSERT_THAT(file().Write(rows), IsOk());
  }
  // The ended_order of the jobs of the answer.
  std::vector<uint64_t> Orders(const v1::HistoryRequest& request) {
    std::vector<uint64_t> orders;
    const auto history = file().History(request);
    EXPECT_THAT(history, IsOk());
    for (const v1::AccountedJob& job : history->jobs()) {
      orders.push_back(job.ended_order());
    }
    return orders;
  }
  std::map<std::string, v1::UsageSum> Sums(v1::UsageRequest::Grouping by) {
    v1::UsageRequest request;
    request.set_by(by);
    std::map<std::string, v1::UsageSum> sums;
    const auto usage = file().Usage(request);
    EXPECT_THAT(usage, IsOk());
    for (const v1::UsageSum& sum : usage->sums()) sums[sum.key()] = sum;
    sums["total"] = usage->total();
    return sums;
  }

  std::unique_ptr<AccountingFile> file_;
};

TEST_F(AccountingFileTest, AJobIsReadAsItWasWrittenAlsoAfterAStart) {
  v1::AccountedJob job = Failed(1, v1::CRASH);
  job.set_message("exited with status 3");
  Write({job});
  file_.reset();
  v1::HistoryRequest request;
  request.set_node_uses(true);
  const auto history = file().History(request);
  ASSERT_THAT(history, IsOk());
  ASSERT_THAT(history->jobs(), SizeIs(1));
  EXPECT_EQ(history->jobs(0).SerializeAsString(), job.SerializeAsString());
  request.set_node_uses(false);
  EXPECT_THAT(file().History(request)->jobs(0).node_uses(), IsEmpty());
}

TEST_F(AccountingFileTest, AJobThatHeldNodesIsReplacedAndAWholeOneStays) {
  v1::AccountedJob job = Job(1);
  job.set_holds_nodes(true);
  job.set_memory(1 << 30);
  Write({job});
  v1::AccountedJob whole = Job(1);
  whole.set_gpu_us(5 * kHourUs);
  whole.mutable_node_uses(0)->set_gpu_us(3 * kHourUs);
  Write({whole});
  v1::HistoryReply history = *file().History({});
  ASSERT_THAT(history.jobs(), SizeIs(1));
  EXPECT_EQ(history.jobs(0).gpu_us(), 5 * kHourUs);
  EXPECT_FALSE(history.jobs(0).holds_nodes());
  // Only the allocations told it.
  EXPECT_EQ(history.jobs(0).memory(), 1u << 30);
  EXPECT_EQ(Sums(v1::UsageRequest::NODE)["a"].gpu_us(), 3 * kHourUs);
  Write({Job(1), Job(1)});
  history = *file().History({});
  ASSERT_THAT(history.jobs(), SizeIs(1));
  EXPECT_EQ(history.jobs(0).gpu_us(), 5 * kHourUs);
}

TEST_F(AccountingFileTest, JobsOfTwoStatesAreDifferentJobs) {
  v1::AccountedJob other = Job(1);
  other.set_server_id(~uint64_t{0});
  Write({Job(1), other});
  EXPECT_THAT(Orders({}), SizeIs(2));
}

TEST_F(AccountingFileTest, WhatARequestAsksForIsFound) {
  v1::AccountedJob bob = Failed(2, v1::HANG);
  bob.set_user("bob");
  bob.set_name("eval");
  v1::AccountedJob element = Job(3, 2);
  element.set_array(103);
  element.set_array_index(7);
  v1::AccountedJob step = Job(4, 2);
  step.set_step_of(101);
  Write({Job(1), bob, element, step});
  v1::HistoryRequest request;
  EXPECT_THAT(Orders(request), ElementsAre(3, 2, 1));
  request.set_steps(true);
  EXPECT_THAT(Orders(request), ElementsAre(4, 3, 2, 1));
  request.add_users("bob");
  EXPECT_THAT(Orders(request), ElementsAre(2));
  request.add_users("alice");
  request.add_names("train");
  EXPECT_THAT(Orders(request), ElementsAre(4, 3, 1));
  request.clear_names();
  request.add_phases(v1::FAILED);
  EXPECT_THAT(Orders(request), ElementsAre(2));
  request.Clear();
  request.add_ids(101);
  EXPECT_THAT(Orders(request), ElementsAre(1));
  request.set_steps(true);
  EXPECT_THAT(Orders(request), ElementsAre(4, 1));
  request.Clear();
  request.add_ids(104);
  EXPECT_THAT(Orders(request), ElementsAre(4));
  request.Clear();
  request.add_ids(103);
  EXPECT_THAT(Orders(request), ElementsAre(3));
  request.Clear();
  request.set_since_unix_ms(kDayMs + 1);
  EXPECT_THAT(Orders(request), ElementsAre(3));
  request.Clear();
  request.set_until_unix_ms(kDayMs);
  EXPECT_THAT(Orders(request), ElementsAre(2, 1));
}

TEST_F(AccountingFileTest, AnAnswerHasTheLastJobsAndSaysThatThereAreMore) {
  std::vector<v1::AccountedJob> jobs;
  for (uint64_t order = 1; order <= 600; ++order) jobs.push_back(Job(order));
  Write(jobs);
  v1::HistoryRequest request;
  request.set_limit(2);
  EXPECT_THAT(Orders(request), ElementsAre(600, 599));
  EXPECT_TRUE(file().History(request)->more());
  request.set_limit(600);
  EXPECT_THAT(Orders(request), SizeIs(600));
  EXPECT_FALSE(file().History(request)->more());
  request.add_users("alice");
  EXPECT_THAT(Orders(request), SizeIs(600));
  request.clear_users();
  request.add_users("nobody");
  EXPECT_THAT(Orders(request), IsEmpty());
}

TEST_F(AccountingFileTest, SumsByUserNodeAndDayAreWhatRan) {
  v1::AccountedJob bob = Failed(2, v1::HANG);
  bob.set_user("bob");
  v1::AccountedJob lost = Job(3, 2);
  AddLost(v1::NODE_LOST, false, kHourUs, &lost);
  // Its time is a part of that of job 101.
  v1::AccountedJob step = Job(4, 2);
  step.set_step_of(101);
  Write({Job(1), bob, lost, step});
  for (const auto by : {v1::UsageRequest::USER, v1::UsageRequest::NODE, v1::UsageRequest::DAY}) {
    auto sums = Sums(by);
    const v1::UsageSum total = sums["total"];
    EXPECT_EQ(total.jobs(), 3u);
    EXPECT_EQ(total.failed(), 1u);
    EXPECT_EQ(total.gpu_us(), 12 * kHourUs);
    EXPECT_EQ(total.cpu_us(), 24 * kHourUs);
    EXPECT_EQ(total.lost_gpu_us(), kHourUs);
    EXPECT_EQ(total.wasted_gpu_us(), 4 * kHourUs);
    sums.erase("total");
    v1::UsageSum sum;
    for (const auto& [key, one] : sums) {
      sum.set_gpu_us(sum.gpu_us() + one.gpu_us());
      sum.set_lost_gpu_us(sum.lost_gpu_us() + one.lost_gpu_us());
      sum.set_wasted_gpu_us(sum.wasted_gpu_us() + one.wasted_gpu_us());
    }
    EXPECT_EQ(sum.gpu_us(), total.gpu_us());
    EXPECT_EQ(sum.lost_gpu_us(), total.lost_gpu_us());
    EXPECT_EQ(sum.wasted_gpu_us(), total.wasted_gpu_us());
  }
  EXPECT_EQ(Sums(v1::UsageRequest::USER)["bob"].wasted_gpu_us(), 4 * kHourUs);
  EXPECT_EQ(Sums(v1::UsageRequest::NODE)["b"].lost_gpu_us(), kHourUs / 2);
  EXPECT_EQ(Sums(v1::UsageRequest::DAY)["1970-01-02"].jobs(), 2u);
}

TEST_F(AccountingFileTest, CausesHaveWhatWasLostAndWastedForThem) {
  v1::AccountedJob job = Job(1);
  AddLost(v1::HANG, false, kHourUs, &job);
  Write({job, Failed(2, v1::HANG), Failed(3, v1::CRASH)});
  auto sums = Sums(v1::UsageRequest::CAUSE);
  EXPECT_THAT(sums, SizeIs(3));
  EXPECT_EQ(sums["hang"].failures(), 1u);
  EXPECT_EQ(sums["hang"].failed(), 1u);
  EXPECT_EQ(sums["hang"].lost_gpu_us(), kHourUs);
  EXPECT_EQ(sums["hang"].wasted_gpu_us(), 4 * kHourUs);
  EXPECT_EQ(sums["hang"].gpu_us(), 0);
  EXPECT_EQ(sums["crash"].wasted_gpu_us(), 4 * kHourUs);
}

TEST_F(AccountingFileTest, WhatStepsLostIsNotCountedAgainInTheirBatchJob) {
  // A batch job that failed, with a step that lost an hour before it failed too.
  v1::AccountedJob batch = Failed(2, v1::CRASH);
  v1::AccountedJob step = Failed(1, v1::HANG);
  step.mutable_lost(0)->set_gpu_us(3 * kHourUs);
  AddLost(v1::NODE_LOST, false, kHourUs, &step);
  step.set_step_of(batch.id());
  Write({step, batch});
  auto sums = Sums(v1::UsageRequest::USER);
  EXPECT_EQ(sums["alice"].gpu_us(), 4 * kHourUs);
  EXPECT_EQ(sums["alice"].lost_gpu_us(), kHourUs);
  EXPECT_EQ(sums["alice"].wasted_gpu_us(), 3 * kHourUs);
  auto causes = Sums(v1::UsageRequest::CAUSE);
  EXPECT_EQ(causes["node_lost"].lost_gpu_us(), kHourUs);
  EXPECT_EQ(causes["crash"].wasted_gpu_us(), 3 * kHourUs);
  EXPECT_EQ(causes["hang"].wasted_gpu_us(), 0);
}

TEST_F(AccountingFileTest, OnlyJobsThatEndedInTheTimeAreSummed) {
  Write({Job(1, 1), Job(2, 2), Job(3, 3)});
  v1::UsageRequest request;
  request.set_since_unix_ms(2 * kDayMs);
  request.set_until_unix_ms(3 * kDayMs);
  EXPECT_EQ(file().Usage(request)->total().jobs(), 1u);
  request.set_by(v1::UsageRequest::DAY);
  request.set_zone_offset_s(-3600);
  EXPECT_EQ(file().Usage(request)->sums(0).key(), "1970-01-02");
}

TEST_F(AccountingFileTest, OldJobsAreRemovedInSmallNumbers) {
  Write({Job(1, 1), Job(2, 2), Job(3, 3)});
  EXPECT_EQ(*file().Expire(3 * kDayMs, 1), 1);
  EXPECT_THAT(Orders({}), ElementsAre(3, 2));
  EXPECT_EQ(*file().Expire(3 * kDayMs, 10), 1);
  EXPECT_EQ(*file().Expire(3 * kDayMs, 10), 0);
  EXPECT_THAT(Orders({}), ElementsAre(3));
  EXPECT_EQ(Sums(v1::UsageRequest::NODE)["a"].gpu_us(), 2 * kHourUs);
}

TEST_F(AccountingFileTest, AnotherConnectionReadsMeanwhile) {
  Write({Job(1)});
  const auto reader = AccountingFile::OpenToRead(path_);
  ASSERT_THAT(reader, IsOk());
  EXPECT_THAT((*reader)->History({})->jobs(), SizeIs(1));
  Write({Job(2)});
  EXPECT_THAT((*reader)->History({})->jobs(), SizeIs(2));
  const v1::AccountedJob another = Job(9);
  EXPECT_FALSE((*reader)->Write({&another}).ok());
  (*reader)->StopIf([] { return true; });
  std::vector<v1::AccountedJob> jobs;
  for (uint64_t order = 3; order <= 2000; ++order) jobs.push_back(Job(order));
  Write(jobs);
  EXPECT_THAT((*reader)->Usage({}), StatusIs(absl::StatusCode::kDeadlineExceeded));
}

// Fault (state): The disk of the accounting is full -> Nothing of the write is in the file, and
// it is written when there is room
TEST_F(AccountingFileTest, AFullDiskLeavesTheFileAsItWas) {
  auto opened = AccountingFile::Open(path_, 40);
  ASSERT_THAT(opened, IsOk());
  file_ = *std::move(opened);
  std::vector<v1::AccountedJob> jobs;
  std::vector<const v1::AccountedJob*> rows;
  for (uint64_t order = 1; order <= 2000; ++order) jobs.push_back(Job(order));
  for (const v1::AccountedJob& job : jobs) rows.push_back(&job);
  EXPECT_THAT(file().Write(rows), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(Orders({}), IsEmpty());
  Write({Job(1)});
  EXPECT_THAT(Orders({}), ElementsAre(1));
}

// Fault (state): The file of the accounting is damaged -> It is moved aside, and a new one is
// begun
TEST_F(AccountingFileTest, ADamagedFileIsRefusedAndMovedAside) {
  std::ofstream(path_) << std::string(8192, 'x');
  EXPECT_THAT(AccountingFile::Open(path_), StatusIs(absl::StatusCode::kDataLoss));
  const auto aside = MoveAside(path_, 1000);
  ASSERT_THAT(aside, IsOk());
  EXPECT_EQ(*aside, path_ + ".damaged-19700101T000001Z");
  EXPECT_TRUE(std::filesystem::exists(*aside));
  Write({Job(1)});
  EXPECT_THAT(Orders({}), ElementsAre(1));
}

TEST_F(AccountingFileTest, AFileWithoutATableIsDamaged) {
  for (const char* const table : {"jobs", "node_use", "lost"}) {
    SCOPED_TRACE(table);
    std::filesystem::remove(path_);
    Write({Job(1)});
    file_.reset();
    {
      const auto sqlite = log::SqliteFile::Open(path_, 0, log::SqliteUse::kShared);
      ASSERT_THAT(sqlite, IsOk());
      ASSERT_THAT((*sqlite)->Execute(absl::StrCat("DROP TABLE ", table).c_str()), IsOk());
    }
    EXPECT_THAT(AccountingFile::Open(path_), StatusIs(absl::StatusCode::kDataLoss));
  }
}

// Fault (state): The file of the accounting is of a newer version or another program -> It is
// left alone, and jobs that end are not written
TEST_F(AccountingFileTest, TheFileOfAnotherVersionOrProgramIsLeftAlone) {
  Write({Job(1)});
  file_.reset();
  for (const char* const change : {"PRAGMA user_version=2", "PRAGMA application_id=1"}) {
    const auto sqlite = log::SqliteFile::Open(path_, 0, log::SqliteUse::kShared);
    ASSERT_THAT((*sqlite)->Execute(change), IsOk());
    EXPECT_THAT(AccountingFile::Open(path_), StatusIs(absl::StatusCode::kFailedPrecondition));
  }
}

}  // namespace
}  // namespace cadre::accounting
