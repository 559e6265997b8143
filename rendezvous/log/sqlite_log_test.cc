#include "rendezvous/log/sqlite_log.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "rendezvous/log/ready_snapshot.h"
#include "rendezvous/log/sqlite_log_rig.h"

namespace cadre::log {
namespace {

using ::testing::HasSubstr;

using SqliteLogTest = SqliteLogRig;

TEST_F(SqliteLogTest, WhatWasAppendedIsThereInOrderUnderTheSameServerId) {
  {
    absl::StatusOr<OpenedLog> opened = Open();
    ASSERT_THAT(opened, IsOk());
    EXPECT_EQ(opened->log->server_id(), 77u);
    EXPECT_TRUE(opened->records.empty());
    ASSERT_THAT(opened->log->Append({Key("a", "1"), Key("b", "2")}), IsOk());
    ASSERT_THAT(opened->log->Append({Key("c", "3")}), IsOk());
  }
  options_.new_server_id = 88;
  const absl::StatusOr<OpenedLog> again = Open();
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(again->log->server_id(), 77u);
  ASSERT_EQ(again->records.size(), 3u);
  EXPECT_EQ(again->records[1].key_written().key(), "b");
  EXPECT_EQ(again->records[2].key_written().value(), "3");
}

// More than one row each.
TEST_F(SqliteLogTest, AnAppendOfAnySizeIsThereInOrder) {
  std::vector<v1::Record> records;
  for (int i = 0; i < 50; ++i) records.push_back(Key(absl::StrCat(i), std::string(60000, 'v')));
  {
    absl::StatusOr<OpenedLog> opened = Open();
    ASSERT_THAT(opened, IsOk());
    ASSERT_THAT(opened->log->Append(records), IsOk());
    ASSERT_THAT(opened->log->Append({Key("50", "v")}), IsOk());
  }
  absl::StatusOr<OpenedLog> again = Open();
  ASSERT_THAT(again, IsOk());
  ASSERT_EQ(again->records.size(), 51u);
  for (int i = 0; i < 51; ++i) EXPECT_EQ(again->records[i].key_written().key(), absl::StrCat(i));
  EXPECT_THAT(again->log->Append({Key("51", "v")}), IsOk());
}

TEST_F(SqliteLogTest, TheDirectoryIsForItsOwnerAndOneServer) {
  const absl::StatusOr<OpenedLog> first = Open();
  ASSERT_THAT(first, IsOk());
  struct stat directory;
  ASSERT_EQ(stat(options_.directory.c_str(), &directory), 0);
  EXPECT_EQ(directory.st_mode & 0777, 0700u);
  const absl::Status second = Open().status();
  EXPECT_EQ(second.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.message()), HasSubstr("another server keeps its state in"));
}

TEST_F(SqliteLogTest, ItsFilesAreForTheirOwnerWhateverTheDirectoryAllows) {
  std::filesystem::create_directory(options_.directory);
  std::filesystem::permissions(options_.directory, std::filesystem::perms(0755));
  for (int times = 0; times < 2; ++times) {
    Fill(1);
    for (const std::string name : {"state.db", "state.db-wal"}) {
      struct stat info = {};
      ASSERT_EQ(stat(File(name).c_str(), &info), 0) << name;
      EXPECT_EQ(info.st_mode & 0777, 0600u) << name;
      ASSERT_EQ(chmod(File(name).c_str(), 0644), 0) << name;
    }
  }
}

// Whoever writes the state says what the server's agents start, and as whom.
TEST_F(SqliteLogTest, SomebodyElsesDirectoryIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make files of others";
  Fill(1);
  ASSERT_EQ(chown(options_.directory.c_str(), 64123, -1), 0);
  const auto refused = [](const std::string& why) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why));
  };
  EXPECT_THAT(Open(), refused("belongs to user 64123"));
  ASSERT_EQ(chown(options_.directory.c_str(), geteuid(), -1), 0);
  ASSERT_EQ(chmod(options_.directory.c_str(), 0777), 0);
  EXPECT_THAT(Open(), refused("everybody may write"));
  ASSERT_EQ(chmod(options_.directory.c_str(), 0700), 0);
  const std::string link = root_ + "/link";
  ASSERT_EQ(symlink(options_.directory.c_str(), link.c_str()), 0);
  options_.directory = link;
  ASSERT_EQ(lchown(link.c_str(), 64123, -1), 0);
  EXPECT_THAT(Open(), refused("that user 64123 made"));
}

TEST_F(SqliteLogTest, ADirectoryThatCannotBeMadeIsNamed) {
  std::ofstream(root_ + "/file") << "x";
  options_.directory = root_ + "/file/state";
  const absl::Status status = Open().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--state-dir"));
}

TEST_F(SqliteLogTest, CompactionKeepsTheSnapshotAndWhatFollows) {
  {
    absl::StatusOr<OpenedLog> opened = Open();
    ASSERT_THAT(opened, IsOk());
    const std::string value(60000, 'v');
    int appended = 0;
    while (!opened->log->WantsCompaction()) {
      ASSERT_THAT(opened->log->Append({Key("k", value)}), IsOk());
      ASSERT_LT(++appended, 200) << "it never wants to";
    }
    ASSERT_THAT(CompactTo({Key("k", "last")}, *opened->log), IsOk());
    EXPECT_FALSE(opened->log->WantsCompaction());
    ASSERT_THAT(opened->log->Append({Key("after", "1")}), IsOk());
  }
  const absl::StatusOr<OpenedLog> again = Open();
  ASSERT_THAT(again, IsOk());
  ASSERT_EQ(again->records.size(), 2u);
  EXPECT_EQ(again->records[0].key_written().value(), "last");
  EXPECT_EQ(again->records[1].key_written().key(), "after");
}

// The server goes on while a snapshot is made, and may be killed at any moment of it.
TEST_F(SqliteLogTest, WhatIsAppendedDuringACompactionStaysBehindTheSnapshot) {
  SqliteLogOptions killed = options_;
  killed.directory = root_ + "/killed";
  const auto jobs_in = [](const SqliteLogOptions& options) {
    std::vector<std::string> keys;
    const absl::StatusOr<OpenedLog> opened = OpenSqliteLog(options);
    EXPECT_THAT(opened, IsOk());
    if (!opened.ok()) return keys;
    for (const v1::Record& record : opened->records) keys.push_back(record.key_written().key());
    return keys;
  };
  {
    absl::StatusOr<OpenedLog> opened = Open();
    ASSERT_THAT(opened, IsOk());
    ASSERT_THAT(opened->log->Append({Key("a", "1"), Key("b", "2")}), IsOk());
    ASSERT_THAT(opened->log->Append({Key("c", "3")}), IsOk());
    const std::atomic<bool> stop{false};
    for (const char* round : {"1", "2"}) {
      ReadySnapshot shortener({Key(absl::StrCat("snapshot", round), ""), Key("more", "")}, [&] {
        for (int i = 0; i < 100; ++i) {
          ASSERT_THAT(opened->log->Append({Key(absl::StrCat("meanwhile", i), "")}), IsOk());
        }
        std::filesystem::remove_all(killed.directory);
        std::filesystem::copy(options_.directory, killed.directory);
      });
      ASSERT_THAT(opened->log->Compact(shortener, stop), IsOk());
      EXPECT_EQ(shortener.shown().size(), *round == '1' ? 3u : 103u);
      ASSERT_THAT(opened->log->Append({Key("after", "")}), IsOk());
    }
  }
  const std::vector<std::string> found = jobs_in(options_);
  ASSERT_EQ(found.size(), 103u);
  EXPECT_EQ(found[0], "snapshot2");
  EXPECT_EQ(found[1], "more");
  EXPECT_EQ(found[2], "meanwhile0");
  EXPECT_EQ(found[102], "after");
  // As the second compaction found it: what it wrote beside counts for nothing.
  EXPECT_EQ(jobs_in(killed).size(), 2u + 100 + 1 + 100);
}

TEST_F(SqliteLogTest, ACompactionThatIsStoppedLeavesTheLogAsItWas) {
  {
    absl::StatusOr<OpenedLog> opened = Open();
    ASSERT_THAT(opened, IsOk());
    ASSERT_THAT(opened->log->Append({Key("a", "1")}), IsOk());
    std::atomic<bool> stop{false};
    ReadySnapshot shortener({Key("snapshot", "")}, [&] { stop = true; });
    EXPECT_EQ(opened->log->Compact(shortener, stop).code(), absl::StatusCode::kCancelled);
    ASSERT_THAT(opened->log->Append({Key("b", "2")}), IsOk());
  }
  const absl::StatusOr<OpenedLog> again = Open();
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(again->records.size(), 2u);
}

TEST_F(SqliteLogTest, TheFileDoesNotGrowWithoutBound) {
  absl::StatusOr<OpenedLog> opened = Open();
  ASSERT_THAT(opened, IsOk());
  const std::vector<v1::Record> some(16, Key("k", std::string(60000, 'v')));
  for (int i = 0; i < 60; ++i) {
    ASSERT_THAT(opened->log->Append(some), IsOk());
    if (opened->log->WantsCompaction()) {
      ASSERT_THAT(CompactTo({Key("k", "v")}, *opened->log), IsOk());
    }
  }
  // 58 MB were written.
  EXPECT_LT(std::filesystem::file_size(File("state.db")), 24u << 20);
}

TEST_F(SqliteLogTest, TimesAreMovedToTheNewClockAfterAStartOfTheMachine) {
  v1::Record created;
  created.mutable_job_created()->mutable_job()->mutable_times()->set_created_us(5000);
  {
    absl::StatusOr<OpenedLog> opened = Open();
    ASSERT_THAT(opened, IsOk());
    ASSERT_THAT(opened->log->Append({created}), IsOk());
  }
  options_.clock = {"another boot", 1004000};
  {
    absl::StatusOr<OpenedLog> opened = Open();
    ASSERT_THAT(opened, IsOk());
    EXPECT_EQ(opened->records[0].job_created().job().times().created_us(), 1000);
    ASSERT_THAT(opened->log->Append({created}), IsOk());
  }
  options_.clock = {"a third", 1005000};
  const absl::StatusOr<OpenedLog> opened = Open();
  ASSERT_THAT(opened, IsOk());
  EXPECT_EQ(opened->records[0].job_created().job().times().created_us(), 0);
  EXPECT_EQ(opened->records[1].job_created().job().times().created_us(), 4000);
}

TEST_F(SqliteLogTest, TimesAreNotMovedBeyondNowByAWallClockThatWasSetBack) {
  v1::Record created;
  created.mutable_job_created()->mutable_job()->mutable_times()->set_created_us(5000);
  {
    absl::StatusOr<OpenedLog> opened = Open();
    ASSERT_THAT(opened, IsOk());
    ASSERT_THAT(opened->log->Append({created}), IsOk());
  }
  options_.clock = {"another boot", 2000, 7000};
  const absl::StatusOr<OpenedLog> opened = Open();
  ASSERT_THAT(opened, IsOk());
  EXPECT_EQ(opened->records[0].job_created().job().times().created_us(), 7000);
}

// --- damage, by name ---

TEST_F(SqliteLogTest, AFullFileRefusesAndLosesNothing) {
  options_.max_pages = 40;
  absl::StatusOr<OpenedLog> opened = Open();
  ASSERT_THAT(opened, IsOk());
  size_t kept = 0;
  absl::Status status;
  while (kept < 100) {
    status = opened->log->Append({Key(absl::StrCat(kept), std::string(8000, 'v'))});
    if (!status.ok()) break;
    ++kept;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no space is left"));
  // Less still fits, and what was acknowledged is there.
  ASSERT_THAT(opened->log->Append({Key("small", "v")}), IsOk());
  opened->log.reset();
  const absl::StatusOr<OpenedLog> again = Open();
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(again->records.size(), kept + 1);
}

// A file size limit is an error of writing that SQLite does not take for a full disk.
TEST_F(SqliteLogTest, ADiskThatFailsRefusesUntilItWorksAgain) {
  absl::StatusOr<OpenedLog> opened = Open();
  ASSERT_THAT(opened, IsOk());
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {1 << 20, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  size_t kept = 0;
  absl::Status status;
  while (kept < 200) {
    status = opened->log->Append({Key(absl::StrCat(kept), std::string(50000, 'v'))});
    if (!status.ok()) break;
    ++kept;
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  ASSERT_GT(kept, 0u);
  ASSERT_THAT(opened->log->Append({Key("after", "v")}), IsOk());
  opened->log.reset();
  const absl::StatusOr<OpenedLog> again = Open();
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(again->records.size(), kept + 1);
}

TEST_F(SqliteLogTest, AReadOnlyDiskIsCalledThat) {
  const std::string disk = root_ + "/disk";
  ASSERT_EQ(mkdir(disk.c_str(), 0700), 0);
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=1m") != 0) GTEST_SKIP() << "needs root";
  const absl::Cleanup unmount = [&] { umount2(disk.c_str(), MNT_DETACH); };
  const std::string path = disk + "/file";
  ASSERT_THAT(SqliteFile::Open(path, 0), IsOk());
  ASSERT_EQ(mount(nullptr, disk.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
  EXPECT_THAT(SqliteFile::Open(path, 0),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the disk is read-only")));
}

TEST_F(SqliteLogTest, WhatItHoldsInMemoryDoesNotGrowWithTheFile) {
  absl::StatusOr<OpenedLog> opened = Open();
  ASSERT_THAT(opened, IsOk());
  const int64_t before = sqlite3_memory_used();
  for (int batch = 0; batch < 40; ++batch) {
    const std::vector<v1::Record> records(100, Key("a", std::string(1000, 'v')));
    ASSERT_THAT(opened->log->Append(records), IsOk());
  }
  EXPECT_GT(std::filesystem::file_size(File("state.db-wal")), 3u << 20);
  EXPECT_LT(sqlite3_memory_used() - before, 2 * kPageCacheKib << 10);
}

TEST_F(SqliteLogTest, ADirectoryThatWasRemovedIsNoticed) {
  absl::StatusOr<OpenedLog> opened = Open();
  ASSERT_THAT(opened, IsOk());
  std::filesystem::remove_all(options_.directory);
  const absl::Status status = opened->log->Append({Key("a", "1")});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("was removed"));
}

TEST_F(SqliteLogTest, AFileThatWasRemovedIsNoticedAlsoAfterAStart) {
  Fill(2);
  for (const char* name : {"state.db", "state.db-wal", "tail"}) {
    absl::StatusOr<OpenedLog> opened = Open();
    ASSERT_THAT(opened, IsOk());
    ASSERT_THAT(opened->log->Append({Key("a", "1")}), IsOk());
    std::filesystem::rename(File(name), root_ + "/kept");
    EXPECT_THAT(opened->log->Append({Key("a", "2")}),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr(File(name) + " was removed")));
    opened->log.reset();
    std::filesystem::rename(root_ + "/kept", File(name));
  }
}

TEST_F(SqliteLogTest, ADirectoryThatWasReplacedIsNoticed) {
  absl::StatusOr<OpenedLog> opened = Open();
  ASSERT_THAT(opened, IsOk());
  ASSERT_THAT(opened->log->Append({Key("a", "1")}), IsOk());
  std::filesystem::rename(options_.directory, root_ + "/moved");
  std::filesystem::copy(root_ + "/moved", options_.directory);
  EXPECT_THAT(opened->log->Append({Key("a", "2")}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("removed or replaced")));
}

}  // namespace
}  // namespace cadre::log
