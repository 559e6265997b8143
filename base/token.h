// Random tokens that prove that a caller belongs to a job or a user, and the files that hold them.
// A token is never printed, logged or put into an argument list. Thread safe.
#ifndef CADRE_BASE_TOKEN_H_
#define CADRE_BASE_TOKEN_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre {

// Accepted size of a token, without its newline.
inline constexpr size_t kTokenBytesMin = 16;
inline constexpr size_t kTokenBytesMax = 4096;

// 256 bits from the kernel, as 64 hexadecimal digits.
std::string RandomToken();

// Returns the file's content without its trailing newline. The file must be a regular one, no
// symbolic link, belong to this user or root, and be closed to other users; root's may be readable
// by a group.
//   NOT_FOUND           no such file
//   PERMISSION_DENIED   owner or mode are too open, or it cannot be read; the message says what to
//                       do
//   INVALID_ARGUMENT    no regular file, or of the wrong size
absl::StatusOr<std::string> ReadTokenFile(const std::string& path);

// Returns the first line that the descriptor yields, up to its newline or end. Blocks until then.
//   INVALID_ARGUMENT    of the wrong size or characters
absl::StatusOr<std::string> ReadTokenFrom(int fd);

// Writes `token` to `path` with mode 0600, replacing it in one step.
absl::Status WriteTokenFile(const std::string& path, absl::string_view token);

// Writes `token` to a new file `path` with mode 0600. ALREADY_EXISTS: the path exists, and is left
// as it is.
absl::Status CreateTokenFile(const std::string& path, absl::string_view token);

// Returns the token in the file `path`. The first caller creates it and all others get the same
// one, also from other machines that share the file system.
absl::StatusOr<std::string> SharedToken(const std::string& path);

// Compares in a time that depends only on the lengths.
bool EqualConstantTime(absl::string_view a, absl::string_view b);

}  // namespace cadre

#endif  // CADRE_BASE_TOKEN_H_
