// Reads a file that a user wrote.
#ifndef CADRE_LAUNCHER_SPEC_TEXT_FILE_H_
#define CADRE_LAUNCHER_SPEC_TEXT_FILE_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace cadre::launcher {

// Errors begin with the path. NOT_FOUND: there is no such file; INVALID_ARGUMENT: it is not a
// regular file, or has more than `max_bytes`; others as for open() and read(). Never blocks on a
// pipe or a terminal.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t max_bytes);
// The same for a file that is open already. `fd` stays open.
absl::StatusOr<std::string> ReadTextFrom(int fd, const std::string& path, size_t max_bytes);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SPEC_TEXT_FILE_H_
