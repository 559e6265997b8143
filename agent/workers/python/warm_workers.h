// Which workers may be forked from a process that has imported their packages
// (agent/supervisor/warm/templates.h), and which variables such a process must not know; and
// what the user and the server are told about it. Pure.
#ifndef CADRE_AGENT_WORKERS_PYTHON_WARM_WORKERS_H_
#define CADRE_AGENT_WORKERS_PYTHON_WARM_WORKERS_H_

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "agent/supervisor/frames.h"
#include "proto/job.pb.h"
#include "proto/spec.pb.h"

namespace cadre::agent {

// Sets `warm` of each frame of a generation. For a Python program all its fields are set. For other
// programs, and if the job turns warm starts off, only what interpreters need to get the start
// hook, which dumps their stacks and lets them use the agents' store. `directory` must be
// accessible to this user alone.
void AllowWarmStart(const v1::RestartPolicy& restart, const std::string& directory,
                    std::vector<supervisor::StartFrame>& workers);

// Messages to the user about warm starts, each once, and imports to report to the server. One
// thread.
class WarmNotes {
 public:
  // Why a worker was not started warm: once per generation, and not in a job's first one, where
  // warm starts are not expected. Empty: nothing to report.
  std::string OnStarted(const supervisor::StartedFrame& started, uint64_t generation,
                        bool restarted) {
    if (started.why_plain.empty() || !restarted) return "";
    if (std::exchange(last_generation_, generation) == generation) return "";
    return absl::StrCat("started plainly, not warm: ", started.why_plain);
  }

  // The workers of a new generation have imported nothing yet.
  void BeginGeneration() { imports_.clear_worker_us(); }
  void OnImported(const supervisor::ImportedFrame& imported) {
    // A forked worker may have nothing left to import; the 1 distinguishes that from an unknown
    // time.
    imports_.set_worker_us(std::max<int64_t>(1, int64_t{1000} * imported.milliseconds));
  }
  // Returns the messages for the user. Packages that are left to the workers to import need no
  // action by the user, so they are only listed by `cadre timeline`, with the reason.
  std::vector<std::string> OnTemplate(const supervisor::TemplateFrame& said) {
    std::vector<std::string> lines;
    for (absl::string_view note : said.notes) {
      if (!absl::ConsumePrefix(&note, kLeft)) {
        lines.emplace_back(note);
      } else if (reported_.emplace(note).second) {
        imports_.add_left_to_workers(std::string(note));
      }
    }
    TakeNumbers(said);
    return lines;
  }
  const v1::ProgramImports& imports() const { return imports_; }

 private:
  // The prefix of the supervisor's notes about packages (agent/supervisor/warm/templates.cc).
  static constexpr absl::string_view kLeft = "warm start: not imported beforehand: ";

  void TakeNumbers(const supervisor::TemplateFrame& said) {
    if (said.pid == 0 && !said.notes.empty()) return;
    imports_.set_template_modules(said.modules);
    imports_.set_template_us(int64_t{1000} * said.milliseconds);
  }

  uint64_t last_generation_ = 0;  // generation
  std::set<std::string> reported_;
  v1::ProgramImports imports_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_PYTHON_WARM_WORKERS_H_
