// State of the Python programs that the supervisor starts warm (templates.h). Plain data;
// supervisor's thread.
#ifndef CADRE_AGENT_SUPERVISOR_WARM_WARM_STATE_H_
#define CADRE_AGENT_SUPERVISOR_WARM_WARM_STATE_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/supervisor/frames.h"
#include "agent/supervisor/output.h"
#include "base/scoped_fd.h"
#include "base/time.h"

namespace cadre::supervisor {

// A process that has imported the packages of a program and is forked for each worker.
struct Template {
  uint64_t serial = 0;  // the supervisor's number that names its cgroup; 0: no template
  pid_t pid = 0;
  ScopedFd pidfd;
  ScopedFd socket;
  ScopedFd own_output;  // its own output, read only if it ends too early
  bool ready = false;
  TemplateFrame ready_frame;  // without its notes
  MonoTime began;
  bool examines = false;                       // it examines unknown packages before it imports
  MonoTime imports_since = MonoTime::Never();  // when it had no more packages to examine
  MonoTime ready_by = MonoTime::Never();
  int64_t learned_bytes = 0;  // size of the list of imports that it was given
};

// A program is one command line in one environment and directory.
struct WarmProgram {
  std::string key;
  StartFrame start;                              // of the worker that was started last
  std::string learned;                           // the file that lists its imports
  uint64_t learner = 0;                          // serial of the group that writes it
  std::vector<std::string> learner_environment;  // the environment that group was given
  bool learns = false;                           // that group's imports are not reported yet
  Template serving;                              // workers are forked from this one
  Template next_template;                        // will replace `serving` once it is ready
  std::vector<std::string> refused;              // modules that no template may import
  int templates = 0;                             // started so far
  size_t most_workers = 1;                       // the most workers of it that ran at once
  bool failed = false;                           // the last template failed a start that waited
  std::string given_up;                     // why there are no more templates; empty: there may be
  MonoTime began = MonoTime::Never();       // when the learner was started
  absl::Duration imports;                   // from then to the last import, once that is known
  int64_t learned_bytes = 0;                // size of `learned` when last checked,
  MonoTime learned_at = MonoTime::Never();  // since when it has had that size,
  MonoTime check_at = MonoTime::Never();    // and when to check again
};

// The start of a worker that a template was, or will be, asked to fork.
struct WarmStart {
  StartFrame start;
  OutputChannels channels;
  uint64_t program = 0;
  uint64_t asked = 0;  // serial of the template; 0: waits for one that still imports
  ScopedFd go;         // writing "g" here lets the worker continue
  MonoTime requested_at;
  MonoTime until = MonoTime::Never();
  // The result.
  pid_t pid = 0;
  std::string failed;
};

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_WARM_WARM_STATE_H_
