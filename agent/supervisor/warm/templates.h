// Templates of Python programs: for each command line a process of the program's own interpreter
// that runs sitecustomize.py, imports what the program was seen to import, and is forked for each
// worker. It is started once the program imports nothing more, beside its workers, or when they
// have failed before that; when more has been learned since, another one takes its place. Whatever
// goes wrong with one costs nothing but itself: workers start plainly. Supervisor's thread only.
#ifndef CADRE_AGENT_SUPERVISOR_WARM_TEMPLATES_H_
#define CADRE_AGENT_SUPERVISOR_WARM_TEMPLATES_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "agent/supervisor/frames.h"
#include "agent/supervisor/state.h"
#include "base/time.h"

namespace cadre::supervisor {

// Programs that one supervisor keeps templates for; workers of others start plainly.
inline constexpr size_t kMaxPrograms = 4;
// Of one program, those that are refused for what they import included.
inline constexpr int kMaxTemplates = 8;
// From the start of a template until it can be forked.
inline constexpr absl::Duration kReadyLimit = absl::Minutes(3);
// From the order to fork until the process is there.
inline constexpr absl::Duration kForkLimit = absl::Seconds(5);
// So much more in the file of a program's imports, some ten modules, is worth another template.
inline constexpr int64_t kWorthAnotherBytes = 1000;

// The number of the worker's program; 0: `why` says why it is none that can be warm.
uint64_t ProgramOf(State& state, const StartFrame& start, std::string* why);

// The frame with which a worker starts plainly, with the hook; one of them writes down what it
// imports.
StartFrame Learning(State& state, uint64_t serial, WarmProgram& program, const StartFrame& start);

// Asks the template that serves for a process. False: `warm.failed` says why it could not be.
bool AskForFork(State& state, uint64_t serial, WarmProgram& program, WarmStart& warm);

// Workers start plainly, and import beside nobody: the template that still imports is ended.
// Another one is started when they import nothing more.
void EndComing(State& state, WarmProgram& program);

// A template has said something, or is gone.
void HandleTemplate(State& state, uint64_t serial);

// Looks whether programs have begun, and ends templates that take too long.
void AdvanceTemplates(State& state, MonoTime now);
MonoTime NextTemplateDeadline(const State& state);

// At the end of the supervisor.
void EndTemplates(State& state);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_WARM_TEMPLATES_H_
