// Where a server keeps its state. Used by one thread.
#ifndef CADRE_LAUNCHER_ATTACH_STATE_DIRECTORY_H_
#define CADRE_LAUNCHER_ATTACH_STATE_DIRECTORY_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "rendezvous/core/core.h"
#include "rendezvous/log/record_log.h"

namespace cadre::launcher {

// The word that stands for no directory at all.
inline constexpr char kNoStateDir[] = "none";

// ${XDG_STATE_HOME:-~/.local/state}/cadre/server-<port>. INVALID_ARGUMENT: there is no home.
absl::StatusOr<std::string> DefaultStateDir(int port);

// Opens, or begins, the state in `directory`; nothing for "" and "none". Errors as OpenSqliteLog's.
absl::StatusOr<log::OpenedLog> OpenState(const std::string& directory, const CoreConfig& config);

// Put round each log that a server of this process writes; to be set before one starts.
using LogWrapper =
    absl::StatusOr<std::unique_ptr<log::RecordLog>> (*)(std::unique_ptr<log::RecordLog>);
void WrapLogs(LogWrapper wrapper);
absl::StatusOr<std::unique_ptr<log::RecordLog>> Wrapped(std::unique_ptr<log::RecordLog> log);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ATTACH_STATE_DIRECTORY_H_
