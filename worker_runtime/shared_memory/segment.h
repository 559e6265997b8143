// Memory that processes of one user on one machine share. It has no name in any file system: when
// the last process that mapped it is gone, by whatever death, so is the memory.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_SEGMENT_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_SEGMENT_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "cadre/result.h"

namespace cadre::shared_memory {

// Not thread safe; the memory is whatever its users make of it.
class SharedSegment {
 public:
  // Zeroed, page aligned. RESOURCE_EXHAUSTED: the machine has not that much.
  static Result<std::unique_ptr<SharedSegment>> Create(size_t bytes);
  // Maps another process's segment; it must still hold its descriptor.
  static Result<std::unique_ptr<SharedSegment>> Open(absl::string_view address);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  char* data() const { return data_; }
  size_t size() const { return size_; }
  // For Open() in another process; short text without blanks at its ends.
  std::string address() const;
  // Everybody has opened it; the mappings stay.
  void CloseDescriptor();

 private:
  SharedSegment(char* data, size_t size, int fd) : data_(data), size_(size), fd_(fd) {}

  char* const data_;
  const size_t size_;
  int fd_;
};

}  // namespace cadre::shared_memory

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_SEGMENT_H_
