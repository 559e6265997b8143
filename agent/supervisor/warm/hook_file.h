// sitecustomize.py as a file, for the interpreters that import it. Any thread.
#ifndef CADRE_AGENT_SUPERVISOR_WARM_HOOK_FILE_H_
#define CADRE_AGENT_SUPERVISOR_WARM_HOOK_FILE_H_

#include <string>

#include "absl/status/status.h"

namespace cadre::supervisor {

// Makes the directory, for this user alone, and the file in it, unless it is there: the system may
// have removed it with the agent's directory. Not ok: what could not be made, and why.
absl::Status WriteHook(const std::string& directory);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_WARM_HOOK_FILE_H_
