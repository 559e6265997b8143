// A file that a person wrote, whole.
#ifndef CADRE_LAUNCHER_SPEC_TEXT_FILE_H_
#define CADRE_LAUNCHER_SPEC_TEXT_FILE_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace cadre::launcher {

// Errors begin with the path. NOT_FOUND: there is none; INVALID_ARGUMENT: no regular file, or more
// than `max_bytes`; others as open() and read() say. Never waits for a pipe or a terminal.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t max_bytes);
// The same of what is open already; it stays open.
absl::StatusOr<std::string> ReadTextFrom(int fd, const std::string& path, size_t max_bytes);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SPEC_TEXT_FILE_H_
