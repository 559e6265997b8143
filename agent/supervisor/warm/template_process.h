// The process of a template: how it is started, and what is sent to it. Supervisor's thread only.
#ifndef CADRE_AGENT_SUPERVISOR_WARM_TEMPLATE_PROCESS_H_
#define CADRE_AGENT_SUPERVISOR_WARM_TEMPLATE_PROCESS_H_

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/supervisor/frames.h"
#include "agent/supervisor/output/plumbing.h"
#include "agent/supervisor/state.h"
#include "agent/supervisor/warm/template_messages.h"
#include "agent/supervisor/warm/warm_state.h"

namespace cadre::supervisor {

// Where sitecustomize.py lies, and what programs were seen to import.
std::string HookDirectory(const StartFrame& start);

// The frame's environment, in which the interpreter imports our sitecustomize first and hears what
// it is for ("learn", "plain", "template"), but for the variables `without`.
std::vector<std::string> WithHook(const StartFrame& start, const std::string& purpose,
                                  const std::set<absl::string_view>& without);

// A process of the program's interpreter that waits for its imports. INTERNAL: which step failed.
absl::StatusOr<Template> StartTemplateProcess(State& state, const WarmProgram& program);

// Not OK: the order cannot be said (template_messages.h), or the process does not take it.
absl::Status SendImports(const WarmProgram& program, const Template& to);
// `go`: on which the worker waits before it begins.
absl::Status SendFork(const Template& to, const ForkOrder& order, int standard_input,
                      const Plumbing& plumbing, int go);

// The last line that it has written by itself, where that explains its end.
std::string LastLine(const Template& ended);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_WARM_TEMPLATE_PROCESS_H_
