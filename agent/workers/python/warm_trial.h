// Tries a warm start on this machine with a supervisor, a template and workers as in a job: one
// worker imports PyTorch, if it is installed, a template imports the same, and a second worker is
// forked from it. For `cadre doctor`. Blocks; call before gRPC is initialised.
#ifndef CADRE_AGENT_WORKERS_PYTHON_WARM_TRIAL_H_
#define CADRE_AGENT_WORKERS_PYTHON_WARM_TRIAL_H_

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace cadre::agent {

// A trial ends after this time at the latest.
inline constexpr absl::Duration kWarmTrialLimit = absl::Minutes(2);

struct WarmTrial {
  // Why no worker could be forked, and what to do; empty: success, and all fields below are set.
  std::string failed;
  std::string version;       // of the interpreter, "3.11.2"; set once it has run at all
  std::string torch;         // as imported by the interpreter, "2.15.0"; empty: not installed
  bool torch_found = false;  // also found without the interpreter, as `cadre run` searches for it
  absl::Duration plain;      // from a plain start to the first line after the imports
  absl::Duration warm;       // the same for a forked worker
  unsigned modules = 0;      // imported by the template
  std::vector<std::string> notes;  // what was not imported beforehand and why, a line each
};

// `python`: a path, or a name that is looked up in PATH.
WarmTrial TryWarmStart(const std::string& python);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_PYTHON_WARM_TRIAL_H_
