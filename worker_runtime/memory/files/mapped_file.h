// A file of a folder in memory, mapped whole. Owned by one thread.
#ifndef CADRE_WORKER_RUNTIME_MEMORY_FILES_MAPPED_FILE_H_
#define CADRE_WORKER_RUNTIME_MEMORY_FILES_MAPPED_FILE_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace cadre::memory {

class MappedFile {
 public:
  // Made with mode 0600 where it is missing, and at least `bytes` long: all of them are there, so
  // that no write to them can fail later. RESOURCE_EXHAUSTED: there is no memory for them.
  static absl::StatusOr<MappedFile> Writable(const std::string& path, size_t bytes);
  // NOT_FOUND: there is no such file. Mapped as far as it is long.
  static absl::StatusOr<MappedFile> Readable(const std::string& path);

  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  char* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  MappedFile(char* data, size_t size) : data_(data), size_(size) {}

  char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace cadre::memory

#endif  // CADRE_WORKER_RUNTIME_MEMORY_FILES_MAPPED_FILE_H_
