// Directories that belong to this user alone, for files that its processes share. Thread safe.
#ifndef CADRE_BASE_USER_DIRECTORY_H_
#define CADRE_BASE_USER_DIRECTORY_H_

#include <string>

#include "absl/status/statusor.h"

namespace cadre {

// Both are created with mode 700 if they are missing. PERMISSION_DENIED: something else has that
// name. Other failures have errno's code. The message says what to do.

// Returns <parent>/cadre-<uid>. Another user may have made that name first, which would block all
// jobs of this user; then a directory with a random name beside it is used. A file in
// HomeDirectory() records that name for all of this user's processes on this machine, and a line on
// standard error says so when it is made.
absl::StatusOr<std::string> UserDirectoryIn(const std::string& parent);
// The same directory if it exists; empty: it does not.
std::string FindUserDirectoryIn(const std::string& parent);

// The directory of this user on this machine: UserDirectoryIn(${XDG_RUNTIME_DIR:-/tmp}).
absl::StatusOr<std::string> RuntimeDirectory();

// UserHome()/.cadre, which is the same on every machine that shares the user's home.
// FAILED_PRECONDITION: this user has no home.
absl::StatusOr<std::string> HomeDirectory();

// Returns $HOME, or, if it is not set (batch systems may start programs without it), the home in
// the user database. Empty: neither is known. May wait for a directory service.
std::string UserHome();

}  // namespace cadre

#endif  // CADRE_BASE_USER_DIRECTORY_H_
