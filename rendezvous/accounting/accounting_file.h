// The file in which jobs that have ended are kept: SQLite, with one connection that writes and
// others that read meanwhile. One thread for each connection.
#ifndef CADRE_RENDEZVOUS_ACCOUNTING_ACCOUNTING_FILE_H_
#define CADRE_RENDEZVOUS_ACCOUNTING_ACCOUNTING_FILE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/accounting.pb.h"
#include "rendezvous/log/sqlite_file.h"

namespace cadre::accounting {

// The most jobs, and about the most bytes, of one answer.
inline constexpr uint32_t kHistoryJobsMax = 10000;
inline constexpr size_t kHistoryBytesMax = 32 << 20;
// The most sums of one answer.
inline constexpr int kUsageRowsMax = 10000;

class AccountingFile {
 public:
  // Opens the file, or begins a new one. `max_pages` of 4 KiB; 0: no limit. Errors:
  //   DATA_LOSS            the file is damaged
  //   FAILED_PRECONDITION  it belongs to another program or a newer version of Cadre
  //   RESOURCE_EXHAUSTED, UNAVAILABLE
  static absl::StatusOr<std::unique_ptr<AccountingFile>> Open(const std::string& path,
                                                              int64_t max_pages = 0);
  // Opens a file that another connection has open, to read it.
  static absl::StatusOr<std::unique_ptr<AccountingFile>> OpenToRead(const std::string& path);

  // Writes all of them, or none. A job that is there already is replaced if it had not given back
  // all its nodes when it was written, and else stays as it is.
  absl::Status Write(const std::vector<const v1::AccountedJob*>& jobs);
  // Removes jobs that ended before, `at_most` so many; returns how many.
  absl::StatusOr<int64_t> Expire(int64_t before_unix_ms, int64_t at_most);

  // Once `stop` returns true the two questions fail with DEADLINE_EXCEEDED.
  void StopIf(std::function<bool()> stop) { file_->StopIf(std::move(stop)); }
  absl::StatusOr<v1::HistoryReply> History(const v1::HistoryRequest& request);
  absl::StatusOr<v1::UsageReply> Usage(const v1::UsageRequest& request);

 private:
  explicit AccountingFile(std::unique_ptr<log::SqliteFile> file) : file_(std::move(file)) {}
  absl::Status CheckFormat(bool may_create);
  absl::Status WriteOne(v1::AccountedJob job);
  // Removes the job with this number from all tables.
  absl::Status Remove(int64_t seq);

  const std::unique_ptr<log::SqliteFile> file_;
};

// Renames a damaged file, and SQLite's files beside it, to PATH.damaged-20261130T120000Z, and
// returns that name. No connection may have it open.
absl::StatusOr<std::string> MoveAside(const std::string& path, int64_t now_unix_ms);

}  // namespace cadre::accounting

#endif  // CADRE_RENDEZVOUS_ACCOUNTING_ACCOUNTING_FILE_H_
