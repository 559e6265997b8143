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
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "rendezvous/log/compactor_for_test.h"
#include "rendezvous/log/sqlite_log_for_test.h"

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

// Each append has more than one row.
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

// Fault (state): Two servers are started with one state directory -> The second one is refused
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

// A user who can write the state controls what the server's agents start, and as which user.
//
// Fault (state): The server's state directory belongs to another user or is writable by everybody
// -> The server does not start, and names the owner
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

// The server continues while a snapshot is made, and may be killed at any time meanwhile.
//
// Fault (state): Batches arrive while the log is compacted -> They are kept behind the snapshot,
// and the server's core does not wait
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
      ReadySnapshot compactor({Key(absl::StrCat("snapshot", round), ""), Key("more", "")}, [&] {
        for (int i = 0; i < 100; ++i) {
          ASSERT_THAT(opened->log->Append({Key(absl::StrCat("meanwhile", i), "")}), IsOk());
        }
        std::filesystem::remove_all(killed.directory);
        std::filesystem::copy(options_.directory, killed.directory);
      });
      ASSERT_THAT(opened->log->Compact(compactor, stop), IsOk());
      EXPECT_EQ(compactor.shown().size(), *round == '1' ? 3u : 103u);
      ASSERT_THAT(opened->log->Append({Key("after", "")}), IsOk());
    }
  }
  const std::vector<std::string> found = jobs_in(options_);
  ASSERT_EQ(found.size(), 103u);
  EXPECT_EQ(found[0], "snapshot2");
  EXPECT_EQ(found[1], "more");
  EXPECT_EQ(found[2], "meanwhile0");
  EXPECT_EQ(found[102], "after");
  // The log is as it was before the second compaction, whose unfinished table is ignored.
  EXPECT_EQ(jobs_in(killed).size(), 2u + 100 + 1 + 100);
}

// Fault (state): The server is killed in the middle of a compaction -> The log is as before, and
// half a snapshot is ignored
TEST_F(SqliteLogTest, ACompactionThatIsStoppedLeavesTheLogAsItWas) {
  {
    absl::StatusOr<OpenedLog> opened = Open();
    ASSERT_THAT(opened, IsOk());
    ASSERT_THAT(opened->log->Append({Key("a", "1")}), IsOk());
    std::atomic<bool> stop{false};
    ReadySnapshot compactor({Key("snapshot", "")}, [&] { stop = true; });
    EXPECT_EQ(opened->log->Compact(compactor, stop).code(), absl::StatusCode::kCancelled);
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

// Fault (state): The server's machine reboots -> Recorded times are converted to the new monotonic
// clock by the wall clock
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

// Fault (state): The server's machine reboots with its wall clock set back -> No recorded time is
// moved beyond now
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
  // A smaller record still fits, and acknowledged records are there.
  ASSERT_THAT(opened->log->Append({Key("small", "v")}), IsOk());
  opened->log.reset();
  const absl::StatusOr<OpenedLog> again = Open();
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(again->records.size(), kept + 1);
}

// Writing over a file size limit is an error that SQLite does not take for a full disk.
//
// Fault (state): The server's disk fails -> Changes are refused with UNAVAILABLE, and the file is
// checked before it is used again
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

// Fault (state): The state directory is removed while the server runs -> Changes are refused with
// UNAVAILABLE
TEST_F(SqliteLogTest, ADirectoryThatWasRemovedIsNoticed) {
  absl::StatusOr<OpenedLog> opened = Open();
  ASSERT_THAT(opened, IsOk());
  std::filesystem::remove_all(options_.directory);
  const absl::Status status = opened->log->Append({Key("a", "1")});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("was removed"));
}

// Fault (state): A file of the state is removed while the server runs -> Changes are refused with
// UNAVAILABLE
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

// Fault (state): The state directory is replaced while the server runs -> Changes are refused with
// UNAVAILABLE
TEST_F(SqliteLogTest, ADirectoryThatWasReplacedIsNoticed) {
  absl::StatusOr<OpenedLog> opened = Open();
  ASSERT_THAT(opened, IsOk());
  ASSERT_THAT(opened->log->Append({Key("a", "1")}), IsOk());
  std::filesystem::rename(options_.directory, root_ + "/moved");
  std::filesystem::copy(root_ + "/moved", options_.directory);
  EXPECT_THAT(opened->log->Append({Key("a", "2")}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("removed or replaced")));
}

// --- a state directory that is damaged, or of another program or version, is refused ---

using SqliteLogDamageTest = SqliteLogRig;

constexpr int kAFew = 4;

// Expects the first records that Fill wrote, in order.
void ExpectTheFirst(const OpenedLog& log) {
  for (size_t i = 0; i < log.records.size(); ++i) {
    EXPECT_EQ(log.records[i].key_written().key(), absl::StrCat(i));
    EXPECT_EQ(log.records[i].key_written().value(), std::string(10, 'v'));
  }
}

TEST_F(SqliteLogDamageTest, FlippedByteInARecord) {
  Fill(3);
  Change("UPDATE log SET records = x'0a036a6f62' WHERE number = 2");
  const absl::Status status = Open().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("record 2 cannot be read"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("restore the directory from a copy"));
}

TEST_F(SqliteLogDamageTest, MissingRecordInTheMiddle) {
  Fill(3);
  Change("DELETE FROM log WHERE number = 2");
  EXPECT_EQ(Open().status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(SqliteLogDamageTest, MissingTable) {
  for (const char* table : {"life", "log", "header"}) {
    SCOPED_TRACE(table);
    std::filesystem::remove_all(options_.directory);
    Fill(3);
    Change(absl::StrCat("DROP TABLE ", table).c_str());
    const absl::Status status = Open().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("the state in ", options_.directory,
                                       " is damaged: no such table: ", table,
                                       "; restore the directory from a copy")));
  }
}

TEST_F(SqliteLogDamageTest, FlippedByteInTheWriteAheadLog) {
  Fill(20);
  const int64_t size = std::filesystem::file_size(File("state.db-wal"));
  ASSERT_GT(size, 8192);
  // Wherever the damage is, the log is refused; records must never be missing silently.
  int refused = 0;
  for (int64_t at = 40; at < size; at += size / 16) {
    const std::string copy = absl::StrCat(root_, "/copy", at);
    std::filesystem::copy(options_.directory, copy);
    Overwrite(copy + "/state.db-wal", at, '\x5a');
    SqliteLogOptions options = options_;
    options.directory = copy;
    const absl::StatusOr<OpenedLog> opened = OpenSqliteLog(options);
    if (opened.ok()) {
      EXPECT_EQ(opened->records.size(), 20u) << "at " << at;
    } else {
      EXPECT_EQ(opened.status().code(), absl::StatusCode::kDataLoss) << opened.status();
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
}

TEST_F(SqliteLogDamageTest, TruncatedWriteAheadLog) {
  Fill(20);
  const std::string wal = File("state.db-wal");
  ASSERT_EQ(truncate(wal.c_str(), std::filesystem::file_size(wal) / 2), 0);
  const absl::Status status = Open().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("are missing"));
}

// Cuts a small state's files at many places: if it can be opened, it has every record, or, if the
// number of records is not known, a prefix of them.
//
// Fault (state): The server's state is cut off anywhere -> The server refuses the state and says
// what to do, or reads all of it
TEST_F(SqliteLogDamageTest, CutOffAnywhereItIsRefusedOrWhole) {
  Fill(kAFew);
  const std::string whole = root_ + "/whole";
  std::filesystem::copy(options_.directory, whole);
  const auto size = static_cast<int64_t>(std::filesystem::file_size(whole + "/state.db-wal"));
  size_t opened = 0;
  for (const bool has_tail : {true, false}) {
    for (int64_t at = 0; at <= size; at += at + 509 > size && at < size ? size - at : 509) {
      SCOPED_TRACE(absl::StrCat("cut off at ", at, " of ", size));
      std::filesystem::remove_all(options_.directory);
      std::filesystem::copy(whole, options_.directory);
      if (!has_tail) std::filesystem::remove(File("tail"));
      ASSERT_EQ(truncate(File("state.db-wal").c_str(), at), 0);
      const absl::StatusOr<OpenedLog> log = Open();
      if (!log.ok()) {
        EXPECT_EQ(log.status().code(), absl::StatusCode::kDataLoss) << log.status();
        continue;
      }
      ++opened;
      if (has_tail) {
        EXPECT_EQ(log->records.size(), size_t{kAFew});
      }
      ExpectTheFirst(*log);
    }
  }
  EXPECT_GE(opened, 2u);
}

// Fault (state): A byte anywhere in the server's state is changed -> The server refuses the state
// and says what to do, or reads all of it
TEST_F(SqliteLogDamageTest, FlippedAnywhereItIsRefusedOrWhole) {
  Fill(kAFew);
  const std::string whole = root_ + "/whole";
  std::filesystem::copy(options_.directory, whole);
  for (const char* name : {"state.db", "state.db-wal", "tail"}) {
    const auto size = static_cast<int64_t>(std::filesystem::file_size(whole + "/" + name));
    for (int64_t at = 0; at<size; at += size> 100 ? 211 : 1) {
      SCOPED_TRACE(absl::StrCat(name, " at ", at));
      std::filesystem::remove_all(options_.directory);
      std::filesystem::copy(whole, options_.directory);
      std::fstream file(File(name), std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(at);
      const int byte = file.get();
      file.close();
      Overwrite(File(name), at, static_cast<char>(byte ^ 0x55));
      const absl::StatusOr<OpenedLog> log = Open();
      if (!log.ok()) continue;
      EXPECT_EQ(log->records.size(), size_t{kAFew});
      ExpectTheFirst(*log);
    }
  }
}

TEST_F(SqliteLogDamageTest, GarbageInsteadOfTheFile) {
  Fill(1);
  std::filesystem::remove(File("state.db-wal"));
  std::ofstream(File("state.db"), std::ios::trunc) << std::string(8192, 'x');
  EXPECT_EQ(Open().status().code(), absl::StatusCode::kDataLoss) << Open().status();
}

TEST_F(SqliteLogDamageTest, TheFileIsGone) {
  Fill(1);
  std::filesystem::remove(File("state.db"));
  std::filesystem::remove(File("state.db-wal"));
  const absl::Status status = Open().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("state.db is missing"));
}

// Fault (state): A file of the state is missing when the server starts -> The server says which one
// is missing, and writes nothing
TEST_F(SqliteLogDamageTest, TheWriteAheadLogIsGone) {
  Fill(2);
  std::filesystem::rename(File("state.db-wal"), root_ + "/kept");
  // Twice, because the first start must not have begun an empty state.
  for (int times = 0; times < 2; ++times) {
    EXPECT_THAT(Open().status(),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("is state.db-wal missing")));
  }
  std::filesystem::rename(root_ + "/kept", File("state.db-wal"));
  const absl::StatusOr<OpenedLog> opened = Open();
  ASSERT_THAT(opened, IsOk());
  EXPECT_EQ(opened->records.size(), 2u);
}

TEST_F(SqliteLogDamageTest, TheFileOfAnotherServer) {
  Fill(2);
  SqliteLogOptions other = options_;
  other.directory = root_ + "/other";
  other.new_server_id = 99;
  ASSERT_THAT(OpenSqliteLog(other), IsOk());
  for (const char* name : {"state.db", "state.db-wal"}) {
    std::filesystem::copy_file(other.directory + "/" + name, File(name),
                               std::filesystem::copy_options::overwrite_existing);
  }
  const absl::Status status = Open().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("belongs to another server"));
}

// Fault (state): The server's state is of another format or another server -> The server refuses it
// and says what to do
TEST_F(SqliteLogDamageTest, AnotherFormatIsRefused) {
  Fill(1);
  Change("PRAGMA user_version = 2");
  const absl::Status status = Open().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            absl::StrCat(File("state.db"),
                         " has format 2, of an older version of cadre; this one reads format 3: "
                         "run the version that wrote it, or move the directory away to begin with "
                         "an empty state"));
  Change("PRAGMA user_version = 4");
  EXPECT_THAT(std::string(Open().status().message()), HasSubstr("has format 4, of a newer"));
}

TEST_F(SqliteLogDamageTest, AnotherProgramsFileIsRefused) {
  Fill(1);
  Change("PRAGMA application_id = 1");
  EXPECT_EQ(Open().status().code(), absl::StatusCode::kInvalidArgument);
}

// --- a disk that is full or gone ---

}  // namespace

}  // namespace cadre::log
