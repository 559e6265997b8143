// The record log in SQLite: DIR/state.db with a write-ahead log, and one full sync for each Append.
// One thread.
//
// DIR/tail names the last acknowledged record. It is not synced, so it survives a killed server but
// not a crash of the machine, and it reveals acknowledged records that are missing.
#ifndef CADRE_RENDEZVOUS_LOG_SQLITE_LOG_H_
#define CADRE_RENDEZVOUS_LOG_SQLITE_LOG_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "rendezvous/log/record_log.h"

namespace cadre::log {

// A log smaller than this is not compacted.
inline constexpr int64_t kCompactionBytesMin = 4 << 20;

struct SqliteLogOptions {
  std::string directory;
  // Used for a new log.
  uint64_t new_server_id = 1;
  ClockBase clock;
  // The limit of the file in pages of 4 KiB; 0: the space of the disk.
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
