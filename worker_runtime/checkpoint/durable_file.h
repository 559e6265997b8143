// The files of checkpoints. They survive a power failure: they are written completely, synced and
// then renamed; a checksum detects damage. Thread safe.
#ifndef CADRE_WORKER_RUNTIME_CHECKPOINT_DURABLE_FILE_H_
#define CADRE_WORKER_RUNTIME_CHECKPOINT_DURABLE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "base/scoped_fd.h"
#include "cadre/result.h"
#include "cadre/status.h"

namespace cadre::checkpoint {

// CRC-32C (Castagnoli), as in iSCSI and most storage systems. Extends the checksum `crc` of the
// preceding bytes; it is 0 at the beginning.
uint32_t ExtendCrc32c(uint32_t crc, absl::string_view bytes);

// Reads a file at arbitrary offsets. Thread safe.
class FileReader {
 public:
  // NOT_FOUND: the file is missing. FAILED_PRECONDITION: it is a directory, a pipe or a device.
  static Result<std::unique_ptr<FileReader>> Open(const std::string& path);

  const std::string& path() const { return path_; }
  // The file's size when it was opened.
  uint64_t bytes() const { return bytes_; }
  // DATA_LOSS: the file ends before the range does.
  Status ReadAt(uint64_t offset, char* to, size_t bytes) const;

 private:
  FileReader(std::string path, ScopedFd fd, uint64_t bytes);

  const std::string path_;
  const ScopedFd fd_;
  const uint64_t bytes_;
};

struct FileSum {
  uint64_t bytes = 0;
  uint32_t crc32c = 0;
};

// Reads the whole file. FAILED_PRECONDITION: it is a directory, a pipe or a device.
Result<FileSum> SumFile(const std::string& path);
// Returns the content of a file of at most `max_bytes`. NOT_FOUND: there is none.
// FAILED_PRECONDITION: as above.
Result<std::string> ReadSmallFile(const std::string& path, size_t max_bytes);

// Writes the pieces one after the other and syncs the file. The caller must sync the directory.
Status WriteAndSync(const std::string& path, absl::string_view bytes);
Status WriteAndSync(const std::string& path, std::initializer_list<absl::string_view> pieces);
// Does the same for an open file; `path` is for messages.
Status WriteAndSync(int fd, const std::string& path, absl::string_view bytes);
// Syncs a file or a directory.
Status Sync(const std::string& path);
Status Rename(const std::string& from, const std::string& to);
// Removes a file or a directory with its content. Returns OK if it does not exist.
Status RemoveTree(const std::string& path);

}  // namespace cadre::checkpoint

#endif  // CADRE_WORKER_RUNTIME_CHECKPOINT_DURABLE_FILE_H_
