// Templates of Python programs. For each command line there is a process of the program's own
// interpreter that runs sitecustomize.py, imports what the program was seen to import, and is
// forked for each worker. It is started beside the workers once they import nothing more, or when
// they have failed before that; when more imports are learned a new template replaces it. A failing
// template costs nothing else: workers are then started plainly. Supervisor's thread only.
#ifndef CADRE_AGENT_SUPERVISOR_WARM_TEMPLATES_H_
#define CADRE_AGENT_SUPERVISOR_WARM_TEMPLATES_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "agent/supervisor/frames.h"
#include "agent/supervisor/groups.h"
#include "agent/supervisor/warm/warm_state.h"
#include "base/time.h"

namespace cadre::supervisor {

// Programs for which a supervisor keeps templates; workers of others are started plainly.
inline constexpr size_t kMaxPrograms = 4;
// The number of templates per program, including those refused for what they import.
inline constexpr int kMaxTemplates = 8;
// The time from the start of a template until it can be forked.
inline constexpr absl::Duration kReadyLimit = absl::Minutes(3);
// The time from the order to fork until the process exists.
inline constexpr absl::Duration kForkLimit = absl::Seconds(5);
// If the list of imports grows by this much, some ten modules, a new template is worth it.
inline constexpr int64_t kWorthAnotherBytes = 1000;

// Returns the number of the worker's program, or 0 and in `why` the reason it cannot be warm.
uint64_t ProgramOf(State& state, const StartFrame& start, std::string* why);

// Returns the frame with which a worker is started plainly, with the hook; one worker of a program
// records its imports.
StartFrame LearningFrame(State& state, uint64_t serial, WarmProgram& program,
                         const StartFrame& start);

// Asks the serving template for a process. Returns false if it cannot; `warm.failed` has the
// reason.
bool RequestFork(State& state, uint64_t serial, WarmProgram& program, WarmStart& warm);

// Called when workers are started plainly: ends the template that is still importing, so that they
// need not share processors with it. Another is started when they import nothing more.
void EndNextTemplate(State& state, WarmProgram& program);

// Called when a template has sent a message, or is gone.
void HandleTemplate(State& state, uint64_t serial);

// Checks whether programs have finished their imports, and ends templates that take too long.
void AdvanceTemplates(State& state, MonoTime now);
MonoTime NextTemplateDeadline(const State& state);

// Called at the end of the supervisor.
void EndTemplates(State& state);

// Writes sitecustomize.py, which interpreters import, into the directory, which is accessible to
// this user alone. Makes both unless they exist: the system may have removed them with the agent's
// directory. An error names what could not be made, and why. Any thread.
absl::Status WriteHook(const std::string& directory);

// The directory of sitecustomize.py and of the lists of programs' imports.
std::string HookDirectory(const StartFrame& start);

// The frame's environment without the variables `without`, extended so that the interpreter first
// imports our sitecustomize and reads its purpose ("learn", "plain", "template").
std::vector<std::string> WithHook(const StartFrame& start, const std::string& purpose,
                                  const std::set<absl::string_view>& without);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_WARM_TEMPLATES_H_
