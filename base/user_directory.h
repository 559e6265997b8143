// Directories that are this user's alone, for what its processes share. Thread safe.
#ifndef CADRE_BASE_USER_DIRECTORY_H_
#define CADRE_BASE_USER_DIRECTORY_H_

#include <string>

#include "absl/status/statusor.h"

namespace cadre {

// Both are made, with mode 700, where they are absent. PERMISSION_DENIED: something else has that
// name. What cannot be made: errno's. The message says what to do.

// On this machine: ${XDG_RUNTIME_DIR:-/tmp}/cadre-<uid>.
absl::StatusOr<std::string> RuntimeDirectory();

// On every machine where the user's home is the same: UserHome()/.cadre. FAILED_PRECONDITION: this
// user has no home.
absl::StatusOr<std::string> HomeDirectory();

// $HOME, or, where that is not set (batch systems may start programs without it), what the user
// database says. Empty: neither says it. May wait for a directory service.
std::string UserHome();

}  // namespace cadre

#endif  // CADRE_BASE_USER_DIRECTORY_H_
