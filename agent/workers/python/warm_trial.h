// Tries a warm start on this machine, with a supervisor, a template and workers as a job has them:
// one worker imports PyTorch, where there is one, a template imports the same, and a second worker
// is forked from it. For `cadre doctor`. Blocks; before gRPC is initialised.
#ifndef CADRE_AGENT_WORKERS_PYTHON_WARM_TRIAL_H_
#define CADRE_AGENT_WORKERS_PYTHON_WARM_TRIAL_H_

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace cadre::agent {

// A trial ends after this, whatever came of it.
inline constexpr absl::Duration kWarmTrialLimit = absl::Minutes(2);

struct WarmTrial {
  // Why no worker could be forked, and what to do; empty: it was. What follows is then all there.
  std::string failed;
  std::string version;             // of the interpreter, "3.11.2"; known once it has run at all
  std::string torch;               // as the interpreter imports it, "2.15.0"; empty: there is none
  bool torch_found = false;        // without the interpreter too, as `cadre run` looks for it
  absl::Duration plain;            // from a start to the first line after the imports, plainly
  absl::Duration warm;             // and forked
  unsigned modules = 0;            // that the template had imported
  std::vector<std::string> notes;  // what was not imported beforehand and why, a line each
};

// `python`: a path, or a name that is looked up in PATH.
WarmTrial TryWarmStart(const std::string& python);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_PYTHON_WARM_TRIAL_H_
