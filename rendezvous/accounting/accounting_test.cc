#include "rendezvous/accounting/accounting.h"

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/accounting/accounting_for_test.h"

namespace cadre::accounting {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class AccountingTest : public AccountingRig {
 protected:
  AccountingTest() {
    options_.path = path_;
    options_.unix_ms = [this] { return now_ms_.load(); };
    options_.log = [this](const std::string& line) {
      const absl::MutexLock lock(&mutex_);
      lines_.push_back(line);
    };
  }

  std::vector<std::string> Lines() {
    const absl::MutexLock lock(&mutex_);
    return lines_;
  }
  static absl::StatusOr<v1::HistoryReply> History(Accounting& accounting) {
    std::promise<absl::StatusOr<v1::HistoryReply>> promise;
    std::future<absl::StatusOr<v1::HistoryReply>> answer = promise.get_future();
    accounting.AskHistory(
        {}, [&](absl::StatusOr<v1::HistoryReply> reply) { promise.set_value(std::move(reply)); });
    return answer.get();
  }
  static std::vector<v1::AccountedJob> Jobs(uint64_t count) {
    std::vector<v1::AccountedJob> jobs;
    for (uint64_t order = 1; order <= count; ++order) jobs.push_back(Job(order));
    return jobs;
  }
  int Kept() {
    const Accounting again(options_);
    const auto file = AccountingFile::OpenToRead(path_);
    return file.ok() ? (*file)->History({})->jobs_size() : -1;
  }

  AccountingOptions options_;
  std::atomic<int64_t> now_ms_{2 * kDayMs};
  absl::Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(AccountingTest, JobsThatAreAddedAreReadAndNoneIsLostAtTheEnd) {
  {
    Accounting accounting(options_);
    accounting.Add(Jobs(3));
    accounting.AwaitWritten();
    const auto history = History(accounting);
    ASSERT_THAT(history, IsOk());
    EXPECT_THAT(history->jobs(), SizeIs(3));
    EXPECT_EQ(history->trouble(), "");
    accounting.Add(Jobs(3000));
  }
  EXPECT_EQ(Kept(), 3000);
  EXPECT_THAT(Lines(), IsEmpty());
}

TEST_F(AccountingTest, ThoseOfTheStartWaitForRoom) {
  options_.waiting_bytes_max = 4000;
  {
    Accounting accounting(options_);
    accounting.AddAtStart(Jobs(500));
  }
  EXPECT_EQ(Kept(), 500);
  EXPECT_THAT(Lines(), IsEmpty());
}

TEST_F(AccountingTest, SumsAreAnswered) {
  Accounting accounting(options_);
  accounting.Add(Jobs(3));
  accounting.AwaitWritten();
  std::promise<absl::StatusOr<v1::UsageReply>> promise;
  accounting.AskUsage(
      {}, [&](absl::StatusOr<v1::UsageReply> reply) { promise.set_value(std::move(reply)); });
  const absl::StatusOr<v1::UsageReply> usage = promise.get_future().get();
  ASSERT_THAT(usage, IsOk());
  EXPECT_EQ(usage->total().gpu_us(), 12 * kHourUs);
}

TEST_F(AccountingTest, JobsAreRemovedWhenTheirTimeIsOver) {
  {
    Accounting accounting(options_);
    accounting.Add(Jobs(3));
  }
  now_ms_ = 100 * kDayMs;
  options_.keep = absl::Hours(24);
  Accounting accounting(options_);
  // What is written after the removal is there when that has been done.
  accounting.Add({Job(4, 100)});
  accounting.AwaitWritten();
  EXPECT_THAT(History(accounting)->jobs(), SizeIs(1));
}

// Fault (state): The disk of the accounting is full for long -> Jobs run as before; a bounded
// number of those that end waits, it is said once, and in the answers to questions
TEST_F(AccountingTest, WhileNothingCanBeWrittenABoundedNumberWaits) {
  options_.max_pages = 40;
  options_.waiting_bytes_max = 20000;
  options_.write_retry = absl::Hours(1);
  Accounting accounting(options_);
  v1::AccountedJob large = Job(5000);
  large.set_message(std::string(400000, 'x'));
  accounting.Add({large});
  accounting.AwaitWritten();
  accounting.Add(Jobs(1000));
  EXPECT_THAT(accounting.trouble(), HasSubstr("cannot be written: no space is left"));
  EXPECT_THAT(History(accounting)->trouble(), HasSubstr("no space is left"));
  int full = 0, slow = 0;
  for (const std::string& line : Lines()) {
    full += line.find("no space is left") != std::string::npos;
    slow += line.find("as fast as jobs end") != std::string::npos;
  }
  EXPECT_EQ(full, 1);
  EXPECT_EQ(slow, 1);
}

// Fault (state): The server finds a damaged file -> It keeps that under another name, says so
// in one line and begins a new one
TEST_F(AccountingTest, ADamagedFileIsKeptAside) {
  std::ofstream(path_) << std::string(8192, 'x');
  {
    Accounting accounting(options_);
    accounting.Add(Jobs(2));
  }
  EXPECT_THAT(Lines(), ElementsAre(HasSubstr("it is kept as " + path_ + ".damaged-1970")));
  EXPECT_TRUE(std::filesystem::exists(path_ + ".damaged-19700103T000000Z"));
  EXPECT_EQ(Kept(), 2);
}

// Fault (state): The directory of the accounting is missing -> The server runs without one, and
// writes jobs once it is there
TEST_F(AccountingTest, AFileThatCannotBeOpenedIsTriedAgain) {
  options_.path = root_ + "/missing/accounting.sqlite";
  options_.write_retry = absl::ZeroDuration();
  Accounting accounting(options_);
  EXPECT_THAT(accounting.trouble(), HasSubstr("cannot be written"));
  accounting.Add(Jobs(2));
  EXPECT_FALSE(History(accounting).ok());
  std::filesystem::create_directory(root_ + "/missing");
  while (!accounting.trouble().empty()) std::this_thread::yield();
  accounting.AwaitWritten();
  EXPECT_THAT(History(accounting)->jobs(), SizeIs(2));
  EXPECT_THAT(Lines().back(), HasSubstr("is written again"));
}

}  // namespace
}  // namespace cadre::accounting
