#include "rendezvous/log/sqlite_log.h"

#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "rendezvous/log/record_log.h"
#include "rendezvous/log/sqlite_directory.h"
#include "rendezvous/log/sqlite_file.h"

namespace cadre::log {
namespace {

// "CDRE": it distinguishes our file from other programs'.
constexpr int64_t kApplicationId = 0x43445245;
// The log is compacted when it is this many times as large as the last snapshot.
constexpr int64_t kCompactionFactor = 3;

constexpr char kSchema[] =
    "CREATE TABLE header(server_id INTEGER, first INTEGER, snapshot_bytes INTEGER);"
    // The clocks of the records from `first` on.
    "CREATE TABLE life(first INTEGER PRIMARY KEY, boot_id BLOB, unix_us_at_zero INTEGER);"
    // Each row has some records of one Append, as a v1::RecordBatch that contains nothing else. Its
    // number is that of its last record.
    "CREATE TABLE log(number INTEGER PRIMARY KEY, crc INTEGER, records BLOB);";

int64_t CrcOf(int64_t number, absl::string_view bytes) {
  const uLong crc = crc32(0, reinterpret_cast<const Bytef*>(&number), sizeof(number));
  return static_cast<int64_t>(
      crc32(crc, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size())));
}

bool HasContent(const std::string& path) {
  struct stat file;
  return stat(path.c_str(), &file) == 0 && file.st_size > 0;
}

// A file being written, and the path at which the next server looks for it.
struct OpenFile {
  std::string path;
  ino_t inode = 0;

  bool IsGone() const {
    struct stat file;
    if (stat(path.c_str(), &file) == 0) return file.st_ino != inode;
    return errno == ENOENT || errno == ENOTDIR;
  }
};

class SqliteLog final : public RecordLog {
 public:
  SqliteLog(SqliteLogOptions options, std::unique_ptr<StateDirectory> directory)
      : options_(std::move(options)), directory_(std::move(directory)) {}

  absl::Status Open(std::vector<v1::Record>* records) {
    const bool is_new = !HasContent(Path());
    absl::StatusOr<std::unique_ptr<TailFile>> tail =
        TailFile::Open(absl::StrCat(options_.directory, "/tail"));
    if (!tail.ok()) return CannotSave(tail.status());
    tail_ = *std::move(tail);
    if (is_new && tail_->Read().has_value()) {
      return Damaged("state.db is missing, though it was here before");
    }
    absl::StatusOr<std::unique_ptr<SqliteFile>> file = SqliteFile::Open(Path(), options_.max_pages);
    if (!file.ok()) return OpenError(file.status());
    file_ = *std::move(file);
    RETURN_IF_ERROR(CheckFormat());
    if (server_id_ == 0) {
      if (tail_->Read().has_value()) {
        return Damaged("state.db is empty, though it was not before; is state.db-wal missing?");
      }
      RETURN_IF_ERROR(OpenError(Create()));
    }
    RETURN_IF_ERROR(ReadRecords(records));
    RETURN_IF_ERROR(CheckTail());
    RETURN_IF_ERROR(OpenError(BeginLife()));
    RecordOpenFiles();
    return CannotSave(tail_->Write({server_id_, last_}));
  }

  uint64_t server_id() const override { return server_id_; }

  bool has_one_owner() const override { return true; }  // the holder of the directory's lock
  absl::Status Append(const RecordRows& records) override {
    ++appends_;
    const absl::MutexLock lock(&mutex_);
    --appends_;
    RETURN_IF_ERROR(Ready());
    int64_t number = last_;
    int64_t bytes = 0;
    const absl::Status status = file_->Transact([&] { return Insert(records, &number, &bytes); });
    if (!status.ok()) return Failed(status);
    Committed(number);
    log_bytes_ += bytes;
    return absl::OkStatus();
  }

  bool WantsCompaction() const override {
    return log_bytes_ > std::max(kCompactionBytesMin, kCompactionFactor * snapshot_bytes_);
  }

  // The snapshot is written to a table of its own, and records appended meanwhile are copied behind
  // it. Then the two tables are renamed, so that the new one becomes the log. If the server is
  // killed before that, the new table is never read.
  absl::Status Compact(Compactor& compactor, const std::atomic<bool>& stop) override {
    const absl::Status compacted = [&]() -> absl::Status {
      RETURN_IF_ERROR(EraseTables(stop));
      ASSIGN_OR_RETURN(const int64_t last, FeedAll(compactor, stop));
      int64_t next = last;
      int64_t bytes = 0;
      RETURN_IF_ERROR(WriteSnapshot(compactor.Take(), stop, &next, &bytes));
      return ReplaceLog(last + 1, last, bytes, next, stop);
    }();
    // This frees space. What is left when the server ends is erased by the next server.
    if (!stop) EraseTables(stop).IgnoreError();
    return compacted;
  }

 private:
  std::string Path() const { return absl::StrCat(options_.directory, "/state.db"); }

  absl::Status Damaged(absl::string_view what) const {
    return absl::DataLossError(absl::StrCat(
        "the state in ", options_.directory, " is damaged: ", what,
        "; restore the directory from a copy, or move it away to begin with an empty state, in "
        "which running jobs start anew"));
  }

  // Refuses files of other programs and versions. Sets server_id_ unless the file is new.
  absl::Status CheckFormat() {
    const absl::StatusOr<int64_t> tables = file_->Number("SELECT count(*) FROM sqlite_schema");
    if (!tables.ok()) return OpenError(tables.status());
    if (*tables == 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(const int64_t application, file_->Number("PRAGMA application_id"));
    if (application != kApplicationId) {
      return absl::InvalidArgumentError(
          absl::StrCat(Path(), " belongs to another program; give --state-dir another directory"));
    }
    ASSIGN_OR_RETURN(const int64_t format, file_->Number("PRAGMA user_version"));
    RETURN_IF_ERROR(
        CheckStateFormat(Path(), format, "move the directory away to begin with an empty state"));
    std::string check;
    const absl::Status checked = file_->Run(
        "PRAGMA quick_check(1)", {},
        [&](sqlite3_stmt* statement) { check = std::string(ColumnBytes(statement, 0)); });
    if (!checked.ok()) return OpenError(checked);
    if (check != "ok") return Damaged(check);
    RETURN_IF_ERROR(OpenError(file_->Run(
        "SELECT server_id, first, snapshot_bytes FROM header", {}, [&](sqlite3_stmt* statement) {
          server_id_ = static_cast<uint64_t>(sqlite3_column_int64(statement, 0));
          first_ = sqlite3_column_int64(statement, 1);
          snapshot_bytes_ = sqlite3_column_int64(statement, 2);
        })));
    return server_id_ == 0 ? Damaged("it has no header") : absl::OkStatus();
  }

  absl::Status Create() {
    server_id_ = options_.new_server_id;
    return file_->Transact([&]() -> absl::Status {
      RETURN_IF_ERROR(file_->Execute(kSchema));
      RETURN_IF_ERROR(file_->Execute(absl::StrCat("PRAGMA application_id=", kApplicationId,
                                                  "; PRAGMA user_version=", kStateFormat)
                                         .c_str()));
      return file_->Run("INSERT INTO header VALUES(?1, ?2, 0)",
                        {static_cast<int64_t>(server_id_), first_});
    });
  }

  absl::Status ReadRecords(std::vector<v1::Record>* records) {
    std::vector<std::pair<int64_t, ClockBase>> lives;  // the first record of each
    RETURN_IF_ERROR(
        OpenError(file_->Run("SELECT first, boot_id, unix_us_at_zero FROM life ORDER BY first", {},
                             [&](sqlite3_stmt* statement) {
                               life_ = ClockBase{std::string(ColumnBytes(statement, 1)),
                                                 sqlite3_column_int64(statement, 2)};
                               lives.emplace_back(sqlite3_column_int64(statement, 0), *life_);
                             })));
    int64_t next = first_;
    std::vector<WrittenOn> written_on;
    bool good = true;
    const absl::Status read = file_->Run(
        "SELECT number, crc, records FROM log ORDER BY number", {}, [&](sqlite3_stmt* statement) {
          const int64_t number = sqlite3_column_int64(statement, 0);
          const absl::string_view bytes = ColumnBytes(statement, 2);
          while (written_on.size() < lives.size() && lives[written_on.size()].first <= number) {
            written_on.push_back({records->size(), lives[written_on.size()].second});
          }
          v1::RecordBatch row;
          good = good && !written_on.empty() &&
                 sqlite3_column_int64(statement, 1) == CrcOf(number, bytes) &&
                 row.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) &&
                 row.records_size() > 0 && number == next + row.records_size() - 1;
          if (!good) return;
          next = number + 1;
          log_bytes_ += static_cast<int64_t>(bytes.size());
          for (v1::Record& record : *row.mutable_records()) records->push_back(std::move(record));
        });
    if (!read.ok()) return OpenError(read);
    if (!good) return Damaged(absl::StrCat("record ", next, " cannot be read"));
    last_ = next - 1;
    const std::vector<int64_t> shifts = MoveToClock(written_on, options_.clock, records);
    for (size_t i = 0; i < shifts.size(); ++i) shifts_.emplace_back(lives[i].first, shifts[i]);
    return absl::OkStatus();
  }

  absl::Status CheckTail() const {
    const std::optional<Tail> tail = tail_->Read();
    if (!tail.has_value()) return absl::OkStatus();
    if (tail->server_id != server_id_) {
      return Damaged("state.db belongs to another server than the one that was here before");
    }
    if (tail->last > last_) {
      return Damaged(absl::StrCat("its last ", tail->last - last_, " records are missing"));
    }
    return absl::OkStatus();
  }

  // Records that times from record `first` on are on this clock.
  absl::Status InsertLife(int64_t first) {
    return file_->Run("INSERT OR REPLACE INTO life VALUES(?1, ?2, ?3)",
                      {first, options_.clock.boot_id, options_.clock.unix_us_at_zero});
  }

  absl::Status BeginLife() {
    if (life_.has_value() && life_->boot_id == options_.clock.boot_id &&
        !options_.clock.boot_id.empty()) {
      return absl::OkStatus();
    }
    shifts_.emplace_back(last_ + 1, 0);
    return file_->Transact([&] { return InsertLife(last_ + 1); });
  }

  absl::Status Insert(const RecordRows& records, int64_t* number, int64_t* bytes) {
    for (const RecordRows::Row& row : records.rows()) {
      *number += row.records;
      *bytes += static_cast<int64_t>(row.bytes.size());
      RETURN_IF_ERROR(file_->Run("INSERT INTO log VALUES(?1, ?2, ?3)",
                                 {*number, CrcOf(*number, row.bytes), row.bytes}));
    }
    return absl::OkStatus();
  }

  // Runs one piece of a compaction. Threads that wait to append go first.
  absl::Status Piece(const std::function<absl::Status()>& body) {
    const absl::MutexLock lock(&mutex_,
                               absl::Condition(
                                   +[](SqliteLog* log) { return log->appends_ == 0; }, this));
    RETURN_IF_ERROR(Ready());
    return body();
  }

  // Erases tables that a compaction left, also in pieces.
  absl::Status EraseTables(const std::atomic<bool>& stop) {
    RETURN_IF_ERROR(EraseTable("SELECT count(*) FROM sqlite_schema WHERE name='log_before'",
                               "DELETE FROM log_before WHERE number IN "
                               "(SELECT number FROM log_before ORDER BY number LIMIT 4)",
                               "SELECT count(*) FROM (SELECT number FROM log_before LIMIT 1)",
                               "DROP TABLE log_before", stop));
    return EraseTable("SELECT count(*) FROM sqlite_schema WHERE name='log_next'",
                      "DELETE FROM log_next WHERE number IN "
                      "(SELECT number FROM log_next ORDER BY number LIMIT 4)",
                      "SELECT count(*) FROM (SELECT number FROM log_next LIMIT 1)",
                      "DROP TABLE log_next", stop);
  }
  absl::Status EraseTable(const char* is_there, const char* erase_some, const char* has_rows,
                          const char* drop, const std::atomic<bool>& stop) {
    for (bool more = true; more;) {
      if (stop) return absl::CancelledError("the server is shutting down");
      RETURN_IF_ERROR(Piece([&]() -> absl::Status {
        const absl::StatusOr<int64_t> there = file_->Number(is_there);
        if (!there.ok()) return Failed(there.status());
        more = *there != 0;
        if (!more) return absl::OkStatus();
        const absl::StatusOr<int64_t> rows = file_->Number(has_rows);
        if (!rows.ok()) return Failed(rows.status());
        more = *rows != 0;
        const absl::Status erased = *rows != 0 ? file_->Run(erase_some, {}) : file_->Execute(drop);
        return erased.ok() ? erased : Failed(erased);
      }));
    }
    return absl::OkStatus();
  }

  using NumberedRows = std::vector<std::pair<int64_t, std::string>>;

  // Gives the compactor all records; returns the number of the last.
  absl::StatusOr<int64_t> FeedAll(Compactor& compactor, const std::atomic<bool>& stop) {
    int64_t from = 0, last = 0;
    RETURN_IF_ERROR(Piece([&] {
      from = first_;
      last = last_;
      return absl::OkStatus();
    }));
    size_t life = 0;
    while (from <= last) {
      if (stop) return absl::CancelledError("the server is shutting down");
      NumberedRows rows;
      RETURN_IF_ERROR(ReadRows(from, last, &rows));
      if (rows.empty()) return Damaged(absl::StrCat("record ", from, " is missing"));
      for (const auto& [number, bytes] : rows) {
        while (life + 1 < shifts_.size() && shifts_[life + 1].first <= number) ++life;
        v1::RecordBatch row;
        if (!row.ParseFromString(bytes)) {
          return Damaged(absl::StrCat("record ", number, " cannot be read"));
        }
        for (v1::Record& record : *row.mutable_records()) {
          if (!shifts_.empty()) ShiftTimes(shifts_[life].second, &record);
          compactor.Add(record);
        }
        from = number + 1;
      }
    }
    return last;
  }

  // Reads some of the rows in [from, last].
  absl::Status ReadRows(int64_t from, int64_t last, NumberedRows* rows) {
    return Piece([&]() -> absl::Status {
      const absl::Status read = ReadPiece(from, rows);
      while (!rows->empty() && rows->back().first > last) rows->pop_back();
      return read;
    });
  }

  // Reads about kRowBytes of the log from `from` on.
  absl::Status ReadPiece(int64_t from, NumberedRows* rows) {
    size_t bytes = 0;
    const absl::Status read = file_->Run(
        "SELECT number, records FROM log WHERE number >= ?1 ORDER BY number LIMIT 64", {from},
        [&](sqlite3_stmt* statement) {
          if (bytes >= kRowBytes) return;
          rows->emplace_back(sqlite3_column_int64(statement, 0), ColumnBytes(statement, 1));
          bytes += rows->back().second.size();
        });
    return read.ok() ? read : Failed(read);
  }

  absl::Status WriteSnapshot(const RecordRows& snapshot, const std::atomic<bool>& stop,
                             int64_t* number, int64_t* bytes) {
    RETURN_IF_ERROR(Piece([&]() -> absl::Status {
      const absl::Status created = file_->Execute(
          "CREATE TABLE log_next(number INTEGER PRIMARY KEY, crc INTEGER, records BLOB)");
      return created.ok() ? created : Failed(created);
    }));
    for (const RecordRows::Row& row : snapshot.rows()) {
      if (stop) return absl::CancelledError("the server is shutting down");
      RETURN_IF_ERROR(Piece([&]() -> absl::Status {
        const absl::Status written = InsertNext(*number + row.records, row.bytes);
        return written.ok() ? written : Failed(written);
      }));
      *number += row.records;
      *bytes += static_cast<int64_t>(row.bytes.size());
    }
    return absl::OkStatus();
  }

  absl::Status InsertNext(int64_t number, absl::string_view bytes) {
    return file_->Run("INSERT INTO log_next VALUES(?1, ?2, ?3)",
                      {number, CrcOf(number, bytes), bytes});
  }

  // Copies the records appended after `copied` behind `next` (their numbers grow by the number of
  // records of the snapshot). Then the table becomes the log.
  absl::Status ReplaceLog(int64_t first, int64_t copied, int64_t snapshot_bytes, int64_t next,
                          const std::atomic<bool>& stop) {
    const int64_t further = next - copied;
    int64_t bytes = snapshot_bytes;
    for (bool done = false; !done;) {
      if (stop) return absl::CancelledError("the server is shutting down");
      RETURN_IF_ERROR(Piece([&]() -> absl::Status {
        NumberedRows rows;
        RETURN_IF_ERROR(ReadPiece(copied + 1, &rows));
        const bool all = rows.empty() || rows.back().first == last_;
        if (all) switching_to_ = first;
        const absl::Status moved = file_->Transact([&]() -> absl::Status {
          for (const auto& [number, row] : rows) {
            RETURN_IF_ERROR(InsertNext(number + further, row));
          }
          if (!all) return absl::OkStatus();
          RETURN_IF_ERROR(file_->Execute(
              "ALTER TABLE log RENAME TO log_before; ALTER TABLE log_next RENAME TO log"));
          RETURN_IF_ERROR(file_->Run("DELETE FROM life", {}));
          RETURN_IF_ERROR(InsertLife(first));
          return file_->Run("UPDATE header SET first=?1, snapshot_bytes=?2",
                            {first, snapshot_bytes});
        });
        if (!moved.ok()) return Failed(moved);
        for (const auto& [number, row] : rows) {
          copied = number;
          bytes += static_cast<int64_t>(row.size());
        }
        if (all) Compacted(first, last_ + further, bytes, snapshot_bytes);
        done = all;
        return absl::OkStatus();
      }));
    }
    return absl::OkStatus();
  }

  void Committed(int64_t number) {
    last_ = number;
    // If this fails a loss would go unnoticed, which is no reason to fail a safe commit.
    tail_->Write({server_id_, last_}).IgnoreError();
  }

  void Compacted(int64_t first, int64_t number, int64_t bytes, int64_t snapshot_bytes) {
    switching_to_.reset();
    first_ = first;
    Committed(number);
    log_bytes_ = bytes;
    snapshot_bytes_ = snapshot_bytes;
    shifts_ = {{first, 0}};
  }

  void RecordOpenFiles() {
    files_.clear();
    for (const char* name : {"state.db", "state.db-wal", "tail"}) {
      const std::string path = absl::StrCat(options_.directory, "/", name);
      struct stat file;
      if (stat(path.c_str(), &file) == 0) files_.push_back({path, file.st_ino});
    }
  }

  absl::Status Ready() {
    // Writes to a file without a name are lost with the process.
    for (const OpenFile& file : files_) {
      if (!file.IsGone()) continue;
      return absl::UnavailableError(absl::StrCat("cannot save state: ", file.path,
                                                 " was removed or replaced; restart the server"));
    }
    if (!lost_.ok()) return lost_;
    return file_ != nullptr ? absl::OkStatus() : Reopen();
  }

  // After a disk error the file is opened again: it must contain what was acknowledged.
  absl::Status Reopen() {
    absl::StatusOr<std::unique_ptr<SqliteFile>> file = SqliteFile::Open(Path(), options_.max_pages);
    if (!file.ok()) return CannotSave(file.status());
    // Linux does not retry pages whose sync failed, which would leave a gap in the write-ahead log.
    // So the whole log is moved to state.db and started again.
    RETURN_IF_ERROR(CannotSave((*file)->Execute("PRAGMA wal_checkpoint(TRUNCATE)")));
    RETURN_IF_ERROR(RecoverUncertainCommit(**file));
    file_ = *std::move(file);
    RecordOpenFiles();
    return absl::OkStatus();
  }

  // A transaction that failed may have been written all the same.
  absl::Status RecoverUncertainCommit(SqliteFile& file) {
    const absl::StatusOr<int64_t> first = file.Number("SELECT first FROM header");
    if (!first.ok()) return CannotSave(first.status());
    const absl::StatusOr<int64_t> newest = file.Number("SELECT max(number) FROM log");
    if (!newest.ok()) return CannotSave(newest.status());
    const int64_t last = std::max(*newest, *first - 1);
    if (*first != first_ && switching_to_ == *first) {
      const absl::StatusOr<int64_t> bytes = file.Number("SELECT snapshot_bytes FROM header");
      if (!bytes.ok()) return CannotSave(bytes.status());
      const absl::StatusOr<int64_t> all = file.Number("SELECT sum(length(records)) FROM log");
      if (!all.ok()) return CannotSave(all.status());
      Compacted(*first, last, *all, *bytes);
      return absl::OkStatus();
    }
    if (*first != first_ || last < last_) {
      lost_ = Damaged("it has lost records while the server ran");
      return lost_;
    }
    // The caller of a failed Append repeats it.
    return CannotSave(file.Run("DELETE FROM log WHERE number > ?1", {last_}));
  }

  absl::Status Failed(const absl::Status& status) {
    if (!absl::IsResourceExhausted(status)) file_.reset();
    return CannotSave(status);
  }

  absl::Status CannotSave(const absl::Status& status) const {
    if (status.ok()) return status;
    return absl::Status(
        absl::IsResourceExhausted(status) ? status.code() : absl::StatusCode::kUnavailable,
        absl::StrCat("cannot save state in ", options_.directory, ": ", status.message()));
  }

  // Converts errors while opening.
  absl::Status OpenError(const absl::Status& status) const {
    if (status.ok()) return status;
    return absl::IsDataLoss(status) ? Damaged(status.message()) : CannotSave(status);
  }

  const SqliteLogOptions options_;
  const std::unique_ptr<StateDirectory> directory_;
  std::unique_ptr<TailFile> tail_;
  // Null after a disk error.
  std::unique_ptr<SqliteFile> file_;
  std::vector<OpenFile> files_;
  absl::Status lost_;
  uint64_t server_id_ = 0;
  // Numbers of the first record kept and of the last one.
  int64_t first_ = 1;
  int64_t last_ = 0;
  std::atomic<int64_t> log_bytes_{0};
  std::atomic<int64_t> snapshot_bytes_{0};
  // The clocks of the newest records.
  std::optional<ClockBase> life_;
  // For ranges of records: the first record, and the shift of times on the disk.
  std::vector<std::pair<int64_t, int64_t>> shifts_;
  // The first record of a table that was about to become the log when the disk failed.
  std::optional<int64_t> switching_to_;

  // Held for one Append, or one piece of a compaction.
  absl::Mutex mutex_;
  // The number of appends that wait for the mutex.
  std::atomic<int> appends_{0};
};

}  // namespace

absl::StatusOr<OpenedLog> OpenSqliteLog(const SqliteLogOptions& options) {
  // Makes a file size limit an error like a full disk, not the end of the process.
  signal(SIGXFSZ, SIG_IGN);
  ASSIGN_OR_RETURN(std::unique_ptr<StateDirectory> directory,
                   StateDirectory::Lock(options.directory));
  auto log = std::make_unique<SqliteLog>(options, std::move(directory));
  OpenedLog opened;
  RETURN_IF_ERROR(log->Open(&opened.records));
  opened.log = std::move(log);
  return opened;
}

}  // namespace cadre::log
