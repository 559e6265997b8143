// What people are told of warm starts, once, and the server of what was imported. Pure; one thread.
#ifndef CADRE_AGENT_WORKERS_PYTHON_WARM_NOTES_H_
#define CADRE_AGENT_WORKERS_PYTHON_WARM_NOTES_H_

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

namespace cadre::agent {

class WarmNotes {
 public:
  // Why a worker was started plainly: once a generation, and not of a job's first one, in which
  // nothing else was to be expected. Empty: there is nothing to say.
  std::string OnStarted(const supervisor::StartedFrame& started, uint64_t generation,
                        bool restarted) {
    if (started.why_plain.empty() || !restarted) return "";
    if (std::exchange(said_in_, generation) == generation) return "";
    return absl::StrCat("started plainly, not warm: ", started.why_plain);
  }

  // The workers of a new generation have imported nothing yet.
  void BeginGeneration() { imports_.clear_worker_us(); }
  void OnImported(const supervisor::ImportedFrame& imported) {
    // One that was forked may have nothing left to import, which is no lack of knowledge.
    imports_.set_worker_us(std::max<int64_t>(1, int64_t{1000} * imported.milliseconds));
  }
  // Returns what people are told of it. That packages are left to the workers is nothing that they
  // have to do something about; `cadre timeline` has which, and why.
  std::vector<std::string> OnTemplate(const supervisor::TemplateFrame& said) {
    std::vector<std::string> lines;
    for (absl::string_view note : said.notes) {
      if (!absl::ConsumePrefix(&note, kLeft)) {
        lines.emplace_back(note);
      } else if (told_.emplace(note).second) {
        imports_.add_left_to_workers(std::string(note));
      }
    }
    TakeNumbers(said);
    return lines;
  }
  const v1::ProgramImports& imports() const { return imports_; }

 private:
  // Of the supervisor's notes (agent/supervisor/warm/templates.cc), those of packages.
  static constexpr absl::string_view kLeft = "warm start: not imported beforehand: ";

  void TakeNumbers(const supervisor::TemplateFrame& said) {
    if (said.pid == 0 && !said.notes.empty()) return;
    imports_.set_template_modules(said.modules);
    imports_.set_template_us(int64_t{1000} * said.milliseconds);
  }

  uint64_t said_in_ = 0;  // generation
  std::set<std::string> told_;
  v1::ProgramImports imports_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_PYTHON_WARM_NOTES_H_
