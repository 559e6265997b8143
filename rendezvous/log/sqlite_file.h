// A thin layer over SQLite's C interface: statements and errors as values. One thread.
#ifndef CADRE_RENDEZVOUS_LOG_SQLITE_FILE_H_
#define CADRE_RENDEZVOUS_LOG_SQLITE_FILE_H_

#include <sqlite3.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre::log {

// The size of SQLite's page cache: records are written once and read at the start, so that a larger
// one would only fill up, to SQLite's default of 2 MB.
inline constexpr int kPageCacheKib = 256;

using SqlValue = std::variant<int64_t, absl::string_view>;

enum class SqliteUse {
  // This process alone uses the file, by one connection, with a full sync for each commit.
  kAlone,
  // Other connections read it meanwhile. A commit survives a killed process, but perhaps not a
  // crash of the machine.
  kShared,
  // Reads a file that a kShared connection has open.
  kReadOnly,
};

class SqliteFile {
 public:
  // Opens the file, and creates it if it is missing and not only read. `max_pages` 0: no limit.
  static absl::StatusOr<std::unique_ptr<SqliteFile>> Open(const std::string& path,
                                                          int64_t max_pages,
                                                          SqliteUse use = SqliteUse::kAlone);
  ~SqliteFile();
  SqliteFile(const SqliteFile&) = delete;
  SqliteFile& operator=(const SqliteFile&) = delete;

  // All calls may fail with RESOURCE_EXHAUSTED (no room), DATA_LOSS (the file is damaged) or
  // UNAVAILABLE. Once `stop` returns true, which is asked often, with DEADLINE_EXCEEDED.
  void StopIf(std::function<bool()> stop);
  absl::Status Execute(const char* sql);
  // Binds `values` to ?1, ?2... and runs the statement, which is cached. Strings are bound as
  // blobs. `row` is called for each row.
  absl::Status Run(const char* sql, std::initializer_list<SqlValue> values,
                   const std::function<void(sqlite3_stmt*)>& row = nullptr);
  absl::StatusOr<int64_t> Number(const char* sql);
  // Runs `body` in a transaction: either all of it becomes durable, or none.
  absl::Status Transact(const std::function<absl::Status()>& body);

 private:
  explicit SqliteFile(sqlite3* db) : db_(db) {}
  absl::Status SetUp(SqliteUse use, int64_t max_pages);
  absl::Status Error(int code) const;

  sqlite3* const db_;
  std::function<bool()> stop_;
  std::vector<std::pair<const char*, sqlite3_stmt*>> statements_;
};

// A column of the current row.
absl::string_view ColumnBytes(sqlite3_stmt* statement, int column);

}  // namespace cadre::log

#endif  // CADRE_RENDEZVOUS_LOG_SQLITE_FILE_H_
