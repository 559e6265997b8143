// Directories that are this user's alone, for what its processes share. Thread safe.
#ifndef CADRE_BASE_USER_DIRECTORY_H_
#define CADRE_BASE_USER_DIRECTORY_H_

#include <string>

#include "absl/status/statusor.h"

namespace cadre {

// Both are made, with mode 700, where they are absent. PERMISSION_DENIED: something else has that
// name. What cannot be made: errno's. The message says what to do.

// <parent>/cadre-<uid>. Where that is another user's, who would deny this one every job, it is one
// of a random name beside it, which a file in HomeDirectory() names for all of this user's
// processes on this machine; a line on standard error says so when it is made.
absl::StatusOr<std::string> UserDirectoryIn(const std::string& parent);
// The same where it is there; empty: it is not.
std::string FindUserDirectoryIn(const std::string& parent);

// On this machine: UserDirectoryIn(${XDG_RUNTIME_DIR:-/tmp}).
absl::StatusOr<std::string> RuntimeDirectory();

// On every machine where the user's home is the same: UserHome()/.cadre. FAILED_PRECONDITION: this
// user has no home.
absl::StatusOr<std::string> HomeDirectory();

// $HOME, or, where that is not set (batch systems may start programs without it), what the user
// database says. Empty: neither says it. May wait for a directory service.
std::string UserHome();

}  // namespace cadre

#endif  // CADRE_BASE_USER_DIRECTORY_H_
