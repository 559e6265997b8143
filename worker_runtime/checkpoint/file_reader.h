// A file that is read here and there. Thread safe.
#ifndef CADRE_WORKER_RUNTIME_CHECKPOINT_FILE_READER_H_
#define CADRE_WORKER_RUNTIME_CHECKPOINT_FILE_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/scoped_fd.h"
#include "cadre/result.h"
#include "cadre/status.h"

namespace cadre::checkpoint {

class FileReader {
 public:
  // NOT_FOUND: there is none; FAILED_PRECONDITION: it is a directory, a pipe or a device.
  static Result<std::unique_ptr<FileReader>> Open(const std::string& path);

  const std::string& path() const { return path_; }
  // When it was opened.
  uint64_t bytes() const { return bytes_; }
  // DATA_LOSS: it ends before.
  Status ReadAt(uint64_t offset, char* to, size_t bytes) const;

 private:
  FileReader(std::string path, ScopedFd fd, uint64_t bytes);

  const std::string path_;
  const ScopedFd fd_;
  const uint64_t bytes_;
};

}  // namespace cadre::checkpoint

#endif  // CADRE_WORKER_RUNTIME_CHECKPOINT_FILE_READER_H_
