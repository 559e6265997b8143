// The record log in SQLite: DIR/state.db with a write-ahead log, one full sync for each Append.
// One thread.
//
// DIR/tail names the last record that was acknowledged. It is not synced: it survives a killed
// server, not a lost machine, and shows records that are missing although they were acknowledged.
#ifndef CADRE_RENDEZVOUS_LOG_SQLITE_LOG_H_
#define CADRE_RENDEZVOUS_LOG_SQLITE_LOG_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "rendezvous/log/record_log.h"
#include "rendezvous/log/record_times.h"

namespace cadre::log {

// A log below this is never worth a compaction.
inline constexpr int64_t kCompactionBytesMin = 4 << 20;

struct SqliteLogOptions {
  std::string directory;
  // For a log that does not exist yet.
  uint64_t new_server_id = 1;
  ClockBase clock;
  // Pages of 4 KiB that the file may have; 0: as many as the disk holds.
  int64_t max_pages = 0;
};

// Errors are one line that names the directory and says what to do:
//   ALREADY_EXISTS       another server uses the directory
//   INVALID_ARGUMENT     it cannot be used; the file belongs to another program
//   FAILED_PRECONDITION  the file has another format
//   DATA_LOSS            the file is damaged, or not the one that was here before
//   RESOURCE_EXHAUSTED, UNAVAILABLE   no room to begin; the disk fails
absl::StatusOr<OpenedLog> OpenSqliteLog(const SqliteLogOptions& options);

}  // namespace cadre::log

#endif  // CADRE_RENDEZVOUS_LOG_SQLITE_LOG_H_
