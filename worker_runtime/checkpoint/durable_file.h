// Files that survive a power cut: written whole, synced, then renamed. Thread safe.
#ifndef CADRE_WORKER_RUNTIME_CHECKPOINT_DURABLE_FILE_H_
#define CADRE_WORKER_RUNTIME_CHECKPOINT_DURABLE_FILE_H_

#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/strings/string_view.h"
#include "cadre/result.h"
#include "cadre/status.h"

namespace cadre::checkpoint {

struct FileSum {
  uint64_t bytes = 0;
  uint32_t crc32c = 0;
};

// Reads the whole file; FAILED_PRECONDITION when it is a directory, a pipe or a device.
Result<FileSum> SumFile(const std::string& path);
// The content of a file of at most `max_bytes`; NOT_FOUND when there is none,
// FAILED_PRECONDITION as above.
Result<std::string> ReadSmallFile(const std::string& path, size_t max_bytes);

// Writes and syncs; the directory is the caller's to sync. Pieces come one behind the other.
Status WriteAndSync(const std::string& path, absl::string_view bytes);
Status WriteAndSync(const std::string& path, std::initializer_list<absl::string_view> pieces);
// To one that is open; `path` is for messages.
Status WriteAndSync(int fd, const std::string& path, absl::string_view bytes);
// Of a file or a directory.
Status Sync(const std::string& path);
Status Rename(const std::string& from, const std::string& to);
// With all it holds; fine when it does not exist.
Status RemoveTree(const std::string& path);

}  // namespace cadre::checkpoint

#endif  // CADRE_WORKER_RUNTIME_CHECKPOINT_DURABLE_FILE_H_
