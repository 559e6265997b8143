// Test fixture for warm starts: a real supervisor, the machine's interpreter, and a program with
// packages of its own.
#ifndef CADRE_AGENT_SUPERVISOR_WARM_WARM_RIG_H_
#define CADRE_AGENT_SUPERVISOR_WARM_WARM_RIG_H_

#include <sys/stat.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/supervisor/frames.h"
#include "agent/supervisor/output.h"
#include "agent/supervisor/supervisor_rig.h"
#include "gtest/gtest.h"

namespace cadre::supervisor {

inline constexpr char kPython[] = "/usr/bin/python3";

class WarmTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (access(kPython, X_OK) != 0) GTEST_SKIP() << "there is no " << kPython;
  }
  // Installs a package of the program: in a site directory beside it, as pip would.
  void Install(const std::string& module, const std::string& source) {
    const std::string folder = rig_.folder() + "/site-packages";
    mkdir(folder.c_str(), 0755);
    WriteFile(absl::StrCat(folder, "/", module, ".py"), source);
  }
  void WriteScript(const std::string& source) { WriteFile(rig_.folder() + "/train.py", source); }

  StartFrame Worker(std::vector<std::string> options = {}) {
    StartFrame start;
    start.group = ++groups_;
    start.argv = {kPython};
    start.argv.insert(start.argv.end(), options.begin(), options.end());
    start.argv.insert(start.argv.end(), {"train.py", "one", "two"});
    start.environment = {"PATH=/usr/bin:/bin",
                         absl::StrCat("PYTHONPATH=", rig_.folder(), "/site-packages"),
                         absl::StrCat("RANK=", groups_), "TORCH=2"};
    start.working_dir = rig_.folder();
    start.warm.directory = rig_.folder() + "/warm";
    mkdir(start.warm.directory.c_str(), 0700);
    start.warm.script = "train.py";
    start.warm.rank_variables = {"RANK", "MASTER_PORT"};
    start.warm.quiet_ms = 200;
    return start;
  }
  // Starts a worker that imports its packages and keeps running, and waits until its template is
  // ready.
  TemplateFrame AwaitTemplate(StartFrame start) {
    learner_ = start.group;
    rig_.Send(start);
    rig_.Until([&] { return NewestTemplate().pid != 0; });
    return NewestTemplate();
  }
  TemplateFrame NewestTemplate() const {
    TemplateFrame newest;
    for (const Frame& frame : rig_.frames) {
      if (const auto* template_frame = std::get_if<TemplateFrame>(&frame)) newest = *template_frame;
    }
    return newest;
  }
  std::vector<std::string> Notes() const {
    std::vector<std::string> notes;
    for (const Frame& frame : rig_.frames) {
      const auto* template_frame = std::get_if<TemplateFrame>(&frame);
      if (template_frame != nullptr) {
        notes.insert(notes.end(), template_frame->notes.begin(), template_frame->notes.end());
      }
    }
    return notes;
  }
  // Ends the worker whose imports are recorded, so that the next start is a restart.
  void EndLearner() { rig_.Stop(0, learner_); }

  // The worker's import time in milliseconds, if an ImportedFrame reported it.
  std::optional<uint32_t> ImportsOf(uint64_t group) const {
    for (const Frame& frame : rig_.frames) {
      const auto* imported = std::get_if<ImportedFrame>(&frame);
      if (imported != nullptr && imported->group == group) return imported->milliseconds;
    }
    return std::nullopt;
  }
  std::string OutputOf(uint64_t group) const { return rig_.Output(kStdoutStream, group); }

  SupervisorRig rig_;
  uint64_t groups_ = 0;
  uint64_t learner_ = 0;
};

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_WARM_WARM_RIG_H_
