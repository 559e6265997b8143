// Tests a sync that fails although the bytes were written: then the content of the disk is not
// known.
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "rendezvous/log/compactor_for_test.h"
#include "rendezvous/log/sqlite_log.h"

namespace {

// The number of syncs that will fail.
std::atomic<int> failing_syncs{0};
// What was synced, by inode, on any thread.
std::mutex synced_mutex;
// NOLINTNEXTLINE
std::set<ino_t> synced;

int SyncUnlessFailing(long call, int fd) {
  struct stat file = {};
  if (fstat(fd, &file) == 0) {
    const std::lock_guard<std::mutex> lock(synced_mutex);
    synced.insert(file.st_ino);
  }
  if (failing_syncs > 0) {
    --failing_syncs;
    errno = EIO;
    return -1;
  }
  return static_cast<int>(syscall(call, fd));
}

}  // namespace

// Replace libc's, for SQLite, and for every test of the program.
extern "C" int fsync(int fd) { return SyncUnlessFailing(SYS_fsync, fd); }
extern "C" int fdatasync(int fd) { return SyncUnlessFailing(SYS_fdatasync, fd); }

namespace cadre::log {
namespace {

using ::testing::ElementsAre;

class SqliteLogSyncTest : public testing::Test {
 protected:
  SqliteLogSyncTest() {
    std::string pattern = testing::TempDir() + "/logXXXXXX";
    root_ = mkdtemp(pattern.data());
    options_.directory = root_ + "/state";
    options_.clock = {"boot", 1000000};
  }
  ~SqliteLogSyncTest() override { std::filesystem::remove_all(root_); }

  static v1::Record OfJob(const std::string& job) {
    v1::Record record;
    record.set_job(job);
    return record;
  }
  std::vector<std::string> JobsIn(const std::string& directory) {
    SqliteLogOptions options = options_;
    options.directory = directory;
    const absl::StatusOr<OpenedLog> opened = OpenSqliteLog(options);
    EXPECT_THAT(opened, IsOk());
    std::vector<std::string> jobs;
    if (!opened.ok()) return jobs;
    for (const v1::Record& record : opened->records) jobs.push_back(record.job());
    return jobs;
  }

  std::string root_;
  SqliteLogOptions options_;
};

TEST_F(SqliteLogSyncTest, TheNamesOfAllThatIsNewAreSynced) {
  options_.directory = root_ + "/one/two/state/";
  {
    const std::lock_guard<std::mutex> lock(synced_mutex);
    synced.clear();
  }
  absl::StatusOr<OpenedLog> opened = OpenSqliteLog(options_);
  ASSERT_THAT(opened, IsOk());
  ASSERT_THAT(opened->log->Append({OfJob("a")}), IsOk());
  for (const char* directory : {"", "/one", "/one/two", "/one/two/state"}) {
    struct stat found = {};
    ASSERT_EQ(stat((root_ + directory).c_str(), &found), 0);
    const std::lock_guard<std::mutex> lock(synced_mutex);
    EXPECT_EQ(synced.count(found.st_ino), 1u) << directory;
  }
}

// Fault (state): A sync fails although the data arrived -> The append is tried again, and nothing
// is lost or saved twice
TEST_F(SqliteLogSyncTest, AnAppendWhoseSyncFailedIsMadeAgainAndIsThereOnce) {
  {
    absl::StatusOr<OpenedLog> opened = OpenSqliteLog(options_);
    ASSERT_THAT(opened, IsOk());
    ASSERT_THAT(opened->log->Append({OfJob("a")}), IsOk());
    failing_syncs = 1;
    ASSERT_THAT(opened->log->Append({OfJob("b")}), StatusIs(absl::StatusCode::kUnavailable));
    ASSERT_EQ(failing_syncs, 0);
    ASSERT_THAT(opened->log->Append({OfJob("b")}), IsOk());
    ASSERT_THAT(opened->log->Append({OfJob("c")}), IsOk());
  }
  EXPECT_THAT(JobsIn(options_.directory), ElementsAre("a", "b", "c"));
}

// Fault (state): The sync of a compaction fails -> It is tried again, and nothing is lost
TEST_F(SqliteLogSyncTest, ACompactionWhoseSyncFailedLosesNothing) {
  {
    absl::StatusOr<OpenedLog> opened = OpenSqliteLog(options_);
    ASSERT_THAT(opened, IsOk());
    ASSERT_THAT(opened->log->Append({OfJob("a"), OfJob("b")}), IsOk());
    failing_syncs = 1;
    ASSERT_THAT(CompactTo({OfJob("snapshot"), OfJob("of both")}, *opened->log),
                StatusIs(absl::StatusCode::kUnavailable));
    ASSERT_EQ(failing_syncs, 0);
    ASSERT_THAT(opened->log->Append({OfJob("c")}), IsOk());
    ASSERT_THAT(CompactTo({OfJob("another")}, *opened->log), IsOk());
    ASSERT_THAT(opened->log->Append({OfJob("d")}), IsOk());
  }
  EXPECT_THAT(JobsIn(options_.directory), ElementsAre("another", "d"));
}

// The kernel drops pages that it could not write: a later sync does not write them either.
//
// Fault (state): Linux leaves a gap in the file after a failed sync -> Nothing that is acknowledged
// later depends on the data before that gap
TEST_F(SqliteLogSyncTest, WhatIsAcknowledgedAfterAFailedSyncDoesNotDependOnWhatThatDidNotWrite) {
  absl::StatusOr<OpenedLog> opened = OpenSqliteLog(options_);
  ASSERT_THAT(opened, IsOk());
  ASSERT_THAT(opened->log->Append({OfJob("a")}), IsOk());
  const std::string wal = options_.directory + "/state.db-wal";
  const auto synced = static_cast<int64_t>(std::filesystem::file_size(wal));
  failing_syncs = 1;
  ASSERT_THAT(opened->log->Append({OfJob("b")}), StatusIs(absl::StatusCode::kUnavailable));
  const auto written = static_cast<int64_t>(std::filesystem::file_size(wal));
  ASSERT_GT(written, synced);
  ASSERT_THAT(opened->log->Append({OfJob("b")}), IsOk());
  // The machine crashes, and loses what was not synced.
  const std::string copy = root_ + "/copy";
  std::filesystem::copy(options_.directory, copy);
  const auto size = static_cast<int64_t>(std::filesystem::file_size(copy + "/state.db-wal"));
  std::fstream file(copy + "/state.db-wal", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(synced);
  for (int64_t at = synced; at < std::min(written, size); ++at) file.put('\0');
  file.close();
  EXPECT_THAT(JobsIn(copy), ElementsAre("a", "b"));
}

}  // namespace
}  // namespace cadre::log
