// What the supervisor knows of the Python programs that it starts warm (templates.h). Plain data;
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
#include "agent/supervisor/output/plumbing.h"
#include "base/scoped_fd.h"
#include "base/time.h"

namespace cadre::supervisor {

// An interpreter that has imported what the program imports, and is forked for each worker.
struct Template {
  uint64_t serial = 0;  // the supervisor's, which names its cgroup; 0: there is none
  pid_t pid = 0;
  ScopedFd pidfd;
  ScopedFd socket;
  ScopedFd complaints;  // what it writes by itself: only read when it ends too early
  bool ready = false;
  TemplateFrame ready_frame;  // without its notes
  MonoTime began;
  bool looks = false;                          // at packages that are not known, before it imports
  MonoTime imports_since = MonoTime::Never();  // it need not look at anything more
  MonoTime ready_by = MonoTime::Never();
  int64_t learned_bytes = 0;  // of the program's imports, those that it knew
};

// One command line in one environment and directory.
struct WarmProgram {
  std::string key;
  StartFrame start;                              // of the worker that was started last
  std::string learned;                           // file of what was imported
  uint64_t learner = 0;                          // serial of the group that writes to it,
  std::vector<std::string> learner_environment;  // and what the last was given that was not forked
  bool learns = false;                           // nothing was said of that group's imports so far
  Template serving;                              // workers are forked from this one
  Template coming;                               // takes its place
  std::vector<std::string> refused;              // what no template may import
  int templates = 0;                             // started so far
  size_t most_workers = 1;                       // of its workers that ran at once
  bool failed = false;                      // the last one could not be used by a start that waited
  std::string given_up;                     // why there are no more; empty: it goes on
  MonoTime began = MonoTime::Never();       // when the learner was started
  absl::Duration imports;                   // from then to its last import, once that is known
  int64_t learned_bytes = 0;                // when they were last looked at,
  MonoTime learned_at = MonoTime::Never();  // since when there are as many,
  MonoTime look_at = MonoTime::Never();     // and when to look again
};

// The start of a worker that a template has been, or will be, asked for.
struct WarmStart {
  StartFrame start;
  Plumbing plumbing;
  uint64_t program = 0;
  uint64_t asked = 0;  // serial of the template; 0: it waits for one that still imports
  ScopedFd go;         // a "g" written here lets the process go on
  MonoTime came;
  MonoTime until = MonoTime::Never();
  // What came of it.
  pid_t pid = 0;
  std::string failed;
};

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_WARM_WARM_STATE_H_
