#include "launcher/attach/server_state.h"

#include <stdio.h>
#include <stdlib.h>

#include <chrono>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/user_directory.h"
#include "launcher/environment/signals.h"
#include "rendezvous/log/sqlite_log.h"

namespace cadre::launcher {
namespace {

LogWrapper log_wrapper = nullptr;

constexpr std::chrono::seconds kNoticeAfter(3);

// Waits as long as it takes, and tells the user if that is long.
absl::StatusOr<log::OpenedLog> Open(const log::SqliteLogOptions& options) {
  auto opening = std::async(std::launch::async, [&] { return log::OpenSqliteLog(options); });
  const Interruptible wait;
  if (opening.wait_for(kNoticeAfter) == std::future_status::timeout) {
    fprintf(
        stderr,
        "cadre: still reading the state in %s: it is large, or its file system does not answer\n",
        options.directory.c_str());
  }
  return opening.get();
}

}  // namespace

absl::StatusOr<std::string> DefaultStateDir(int port) {
  const char* state = getenv("XDG_STATE_HOME");
  const bool has_state = state != nullptr && state[0] == '/';
  const std::string home = has_state ? "" : UserHome();
  if (!has_state && home.empty()) {
    return absl::InvalidArgumentError(
        "HOME is not set, so there is no default directory for the state: give --state-dir DIR, or "
        "--state-dir none");
  }
  return absl::StrCat(has_state ? state : absl::StrCat(home, "/.local/state"), "/cadre/server-",
                      port);
}

absl::StatusOr<log::OpenedLog> OpenState(const std::string& directory, const CoreConfig& config) {
  if (directory.empty() || directory == kNoStateDir) return log::OpenedLog();
  log::SqliteLogOptions options;
  options.directory = directory;
  options.new_server_id = config.server_id;
  options.clock = log::ThisClockBase();
  ASSIGN_OR_RETURN(log::OpenedLog opened, Open(options));
  ASSIGN_OR_RETURN(opened.log, WrapLog(std::move(opened.log)));
  return opened;
}

void SetLogWrapper(LogWrapper wrapper) { log_wrapper = wrapper; }

absl::StatusOr<std::unique_ptr<log::RecordLog>> WrapLog(std::unique_ptr<log::RecordLog> log) {
  if (log_wrapper == nullptr) return log;
  return log_wrapper(std::move(log));
}

}  // namespace cadre::launcher
