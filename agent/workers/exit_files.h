// The files that an agent leaves when its job is over here: the verdict, and the error file of
// whoever started the launcher. Blocks on the file system; any thread.
#ifndef CADRE_AGENT_WORKERS_EXIT_FILES_H_
#define CADRE_AGENT_WORKERS_EXIT_FILES_H_

#include <string>
#include <vector>

#include "agent/core/agent_core.h"

namespace cadre::agent {

struct ExitFiles {
  std::string log_dir;  // empty: no verdict is written
  std::string job;
  std::string run;  // as v1::JobStatus has it; empty: no server told
  std::string node;
  // VerdictMark() of the file that was there before this run.
  std::string earlier_verdict;
};

// Writes what the server said, or else what this node knows: then a verdict that another node of
// the job wrote meanwhile knows more and is kept. Returns a line for each file that could not be
// written.
std::vector<std::string> LeaveExitFiles(const ExitFiles& files, const Exit& exit);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_EXIT_FILES_H_
