// The directory in which a server keeps its state. Used by one thread.
#ifndef CADRE_LAUNCHER_ATTACH_SERVER_STATE_H_
#define CADRE_LAUNCHER_ATTACH_SERVER_STATE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "rendezvous/core/core.h"
#include "rendezvous/log/record_log.h"

namespace cadre::launcher {

// The value of --state-dir for no directory.
inline constexpr char kNoStateDir[] = "none";

// ${XDG_STATE_HOME:-~/.local/state}/cadre/server-<port>. INVALID_ARGUMENT: there is no home.
absl::StatusOr<std::string> DefaultStateDir(int port);

// Opens the state in `directory`, or creates it; returns no log for "" and "none". Errors as
// OpenSqliteLog.
absl::StatusOr<log::OpenedLog> OpenState(const std::string& directory, const CoreConfig& config);

// Wraps each log that a server of this process writes, for tests; set it before a server starts.
using LogWrapper =
    absl::StatusOr<std::unique_ptr<log::RecordLog>> (*)(std::unique_ptr<log::RecordLog>);
void SetLogWrapper(LogWrapper wrapper);
absl::StatusOr<std::unique_ptr<log::RecordLog>> WrapLog(std::unique_ptr<log::RecordLog> log);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ATTACH_SERVER_STATE_H_
