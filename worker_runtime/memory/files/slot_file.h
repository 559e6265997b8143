// A file in memory that holds one state: a header, written last, says of which step it is.
#ifndef CADRE_WORKER_RUNTIME_MEMORY_FILES_SLOT_FILE_H_
#define CADRE_WORKER_RUNTIME_MEMORY_FILES_SLOT_FILE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/memory/files/mapped_file.h"

namespace cadre::memory {

// Where the state begins: at a page.
inline constexpr size_t kStateOffset = 4096;

struct SlotLabel {
  int64_t step = 0;
  // In which it was saved: the same step of another one is another state.
  uint64_t generation = 0;
  int world_size = 0;
  size_t bytes = 0;
  // Counts what the owner committed.
  uint64_t sequence = 0;
};

// nullopt: there is no whole state, or the file is none of ours.
std::optional<SlotLabel> ReadLabel(const std::string& path);
absl::Status WriteLabel(const std::string& path, const SlotLabel& label);
// The state is no longer whole.
absl::Status EraseLabel(const std::string& path);

// The state lies at kStateOffset. DATA_LOSS: the file is too short for it.
absl::StatusOr<MappedFile> MapState(const std::string& path, size_t bytes);

}  // namespace cadre::memory

#endif  // CADRE_WORKER_RUNTIME_MEMORY_FILES_SLOT_FILE_H_
