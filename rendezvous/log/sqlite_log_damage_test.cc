// A state directory that is damaged, or that another program or version made, is refused.
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "rendezvous/log/sqlite_log_rig.h"

namespace cadre::log {
namespace {

using ::testing::HasSubstr;

using SqliteLogDamageTest = SqliteLogRig;

constexpr int kAFew = 4;

// They are what Fill wrote, in its order.
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
  // Wherever it is, records are missing or unreadable, never silently fewer.
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

// In a small state, at places all over its files: what can be opened has every record, or as many
// of the first as there can be where nobody knows how many there were.
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

TEST_F(SqliteLogDamageTest, TheWriteAheadLogIsGone) {
  Fill(2);
  std::filesystem::rename(File("state.db-wal"), root_ + "/kept");
  // Twice: the first start must not have begun an empty state.
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
