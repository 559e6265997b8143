// Lines for whoever reads the agent's standard error, which may be a file whose file system does
// not answer. Thread safe.
#ifndef CADRE_AGENT_SUPERVISOR_OUTPUT_COMPLAINTS_H_
#define CADRE_AGENT_SUPERVISOR_OUTPUT_COMPLAINTS_H_

#include "absl/strings/string_view.h"

namespace cadre::supervisor {

// Never waits; left out where too many wait already.
void Complain(absl::string_view line);
// Before the end of the process: waits for a moment until they are written.
void FlushComplaints();

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_OUTPUT_COMPLAINTS_H_
