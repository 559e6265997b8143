#include "rendezvous/log/sqlite_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre::log {
namespace {

// How long a connection waits for another one's lock on the file.
constexpr int kBusyMillis = 2000;

// Keeps other users from reading the file, whatever the directory allows; SQLite's files beside it
// get the same mode. An existing file is not opened for that, because closing it would release
// SQLite's locks.
void CloseToOthers(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd >= 0) {
    close(fd);
    return;
  }
  for (const char* file : {"", "-wal"}) {
    struct stat found = {};
    const std::string name = path + file;
    if (lstat(name.c_str(), &found) == 0 && S_ISREG(found.st_mode)) chmod(name.c_str(), 0600);
  }
}

bool IsReadOnly(sqlite3* db) {
  const char* const path = db == nullptr ? nullptr : sqlite3_db_filename(db, "main");
  struct statvfs disk = {};
  return path != nullptr && statvfs(path, &disk) == 0 && (disk.f_flag & ST_RDONLY) != 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SqliteFile>> SqliteFile::Open(const std::string& path,
                                                             int64_t max_pages, SqliteUse use) {
  const bool read_only = use == SqliteUse::kReadOnly;
  if (!read_only) CloseToOthers(path);
  sqlite3* db = nullptr;
  const int flags =
      (read_only ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE) |
      SQLITE_OPEN_NOFOLLOW | SQLITE_OPEN_NOMUTEX;
  const int code = sqlite3_open_v2(path.c_str(), &db, flags, nullptr);
  std::unique_ptr<SqliteFile> file(new SqliteFile(db));
  if (code != SQLITE_OK) return file->Error(code);
  sqlite3_extended_result_codes(db, 1);
  RETURN_IF_ERROR(file->SetUp(use, max_pages));
  return file;
}

absl::Status SqliteFile::SetUp(SqliteUse use, int64_t max_pages) {
  if (use == SqliteUse::kAlone) {
    // The write-ahead log is kept at close: a killed server does not get here either.
    sqlite3_db_config(db_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
    // Without other processes the write-ahead log needs no shared memory, whose file a full disk
    // could refuse.
    RETURN_IF_ERROR(
        Execute("PRAGMA page_size=4096; PRAGMA locking_mode=EXCLUSIVE;"
                "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
                "PRAGMA journal_size_limit=8388608; PRAGMA temp_store=MEMORY"));
  } else {
    sqlite3_busy_timeout(db_, kBusyMillis);
    RETURN_IF_ERROR(Execute("PRAGMA temp_store=MEMORY"));
    if (use == SqliteUse::kShared) {
      RETURN_IF_ERROR(
          Execute("PRAGMA page_size=4096; PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
                  "PRAGMA journal_size_limit=8388608"));
    }
  }
  RETURN_IF_ERROR(Execute(absl::StrCat("PRAGMA cache_size=-", kPageCacheKib).c_str()));
  if (max_pages == 0) return absl::OkStatus();
  return Execute(absl::StrCat("PRAGMA max_page_count=", max_pages).c_str());
}

void SqliteFile::StopIf(std::function<bool()> stop) {
  constexpr int kInstructions = 10000;
  stop_ = std::move(stop);
  const auto ask = [](void* file) { return static_cast<SqliteFile*>(file)->stop_() ? 1 : 0; };
  sqlite3_progress_handler(db_, stop_ ? kInstructions : 0, stop_ ? +ask : nullptr, this);
}

SqliteFile::~SqliteFile() {
  for (const auto& [sql, statement] : statements_) sqlite3_finalize(statement);
  sqlite3_close(db_);
}

absl::Status SqliteFile::Error(int code) const {
  const int system = db_ == nullptr ? 0 : sqlite3_system_errno(db_);
  const bool no_room =
      (code & 0xff) == SQLITE_FULL ||
      ((code & 0xff) == SQLITE_IOERR && (system == ENOSPC || system == EDQUOT || system == EFBIG));
  if (no_room) return absl::ResourceExhaustedError("no space is left");
  if ((code & 0xff) == SQLITE_INTERRUPT) return absl::DeadlineExceededError("it took too long");
  // SQLite continues with files that it could not open, and reports the last error of those.
  if (IsReadOnly(db_)) return absl::UnavailableError("the disk is read-only");
  // The statements here are correct, so a table or a column is missing.
  if (code == SQLITE_ERROR) return absl::DataLossError(sqlite3_errmsg(db_));
  const std::string text = absl::StrCat(
      sqlite3_errstr(code), system == 0 ? "" : absl::StrCat(" (", strerror(system), ")"));
  if ((code & 0xff) == SQLITE_CORRUPT || (code & 0xff) == SQLITE_NOTADB) {
    return absl::DataLossError(text);
  }
  return absl::UnavailableError(text);
}

absl::Status SqliteFile::Execute(const char* sql) {
  const int code = sqlite3_exec(db_, sql, nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : Error(code);
}

absl::Status SqliteFile::Run(const char* sql, std::initializer_list<SqlValue> values,
                             const std::function<void(sqlite3_stmt*)>& row) {
  sqlite3_stmt* statement = nullptr;
  for (const auto& [known, prepared] : statements_) {
    if (known == sql) statement = prepared;
  }
  if (statement == nullptr) {
    const int code =
        sqlite3_prepare_v3(db_, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
    if (code != SQLITE_OK) return Error(code);
    statements_.emplace_back(sql, statement);
  }
  int at = 0;
  for (const SqlValue& value : values) {
    ++at;
    if (const auto* number = std::get_if<int64_t>(&value)) {
      sqlite3_bind_int64(statement, at, *number);
    } else {
      const absl::string_view bytes = std::get<absl::string_view>(value);
      sqlite3_bind_blob64(statement, at, bytes.data(), bytes.size(), SQLITE_STATIC);
    }
  }
  int code = sqlite3_step(statement);
  while (code == SQLITE_ROW) {
    if (row) row(statement);
    code = sqlite3_step(statement);
  }
  const absl::Status status = code == SQLITE_DONE ? absl::OkStatus() : Error(code);
  sqlite3_reset(statement);
  sqlite3_clear_bindings(statement);
  return status;
}

absl::StatusOr<int64_t> SqliteFile::Number(const char* sql) {
  int64_t number = 0;
  RETURN_IF_ERROR(
      Run(sql, {}, [&](sqlite3_stmt* statement) { number = sqlite3_column_int64(statement, 0); }));
  return number;
}

absl::Status SqliteFile::Transact(const std::function<absl::Status()>& body) {
  RETURN_IF_ERROR(Run("BEGIN IMMEDIATE", {}));
  absl::Status status = body();
  if (status.ok()) status = Run("COMMIT", {});
  // Some errors have rolled back already.
  if (!status.ok() && sqlite3_get_autocommit(db_) == 0) {
    sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr);
  }
  return status;
}

absl::string_view ColumnBytes(sqlite3_stmt* statement, int column) {
  const void* data = sqlite3_column_blob(statement, column);
  return {static_cast<const char*>(data),
          static_cast<size_t>(sqlite3_column_bytes(statement, column))};
}

}  // namespace cadre::log
