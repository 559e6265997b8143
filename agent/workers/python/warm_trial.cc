#include "agent/workers/python/warm_trial.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "agent/supervisor/client.h"
#include "agent/supervisor/frames.h"
#include "agent/workers/python/python_program.h"
#include "base/clock.h"

namespace cadre::agent {
namespace {

// The hook removes CADRE_WARM_START from the environment: if it is still set, the hook did not run.
constexpr char kScript[] = R"(import os, signal, sys
try:
    import torch
    version = str(torch.__version__)
except ImportError:
    import json, logging, multiprocessing
    version = ''
print('hello', '%d.%d.%d' % sys.version_info[:3], version or '-', 'unread' if 'CADRE_WARM_START' in os.environ else 'read', flush=True)
signal.pause()
)";
constexpr uint8_t kStandardOutput = 1;  // in OutputFrame
constexpr uint64_t kPlain = 1;
constexpr uint64_t kWarm = 2;
// The quiet time of a program that has printed hello, after which it imports nothing more.
constexpr uint32_t kQuietMs = 300;

class Trial {
 public:
  Trial(std::unique_ptr<supervisor::Client> supervisor, std::string folder, std::string python)
      : supervisor_(std::move(supervisor)),
        folder_(std::move(folder)),
        python_(std::move(python)) {}

  WarmTrial Run() {
    result_.failed = Try();
    return std::move(result_);
  }

 private:
  // Returns an empty string, or what went wrong.
  std::string Try() {
    std::ofstream(ScriptPath()) << kScript;
    const MonoTime begin = MonoNow();
    if (!Start(kPlain)) return "the supervisor is gone";
    if (!Until([this] { return !HelloOf(kPlain).empty() || Ended(kPlain); })) return TooLate();
    result_.plain = MonoNow() - begin;
    const std::vector<std::string> hello = HelloOf(kPlain);
    if (hello.empty()) return absl::StrCat(python_, " does not run: ", ends_[kPlain]);
    result_.version = hello[1];
    if (hello[2] != "-") result_.torch = hello[2];
    result_.torch_found =
        TorchVersionOf({python_, ScriptPath()}, folder_, Variable) == ParseTorchVersion(hello[2]);
    if (hello[3] != "read") {
      return absl::StrCat(
          python_,
          " does not import sitecustomize from PYTHONPATH (a program around an "
          "interpreter, or options -I, -E, -S within it?); its workers start plainly");
    }
    if (!Until([this] { return template_.has_value() || !given_up_.empty(); })) return TooLate();
    if (!given_up_.empty()) return given_up_;
    result_.modules = template_->modules;
    return Fork();
  }

  std::string Fork() {
    const MonoTime begin = MonoNow();
    if (!Start(kWarm)) return "the supervisor is gone";
    if (!Until([this] { return !HelloOf(kWarm).empty() || Ended(kWarm); })) return TooLate();
    result_.warm = MonoNow() - begin;
    if (HelloOf(kWarm).empty()) return absl::StrCat("the forked worker ends: ", ends_[kWarm]);
    return why_plain_;
  }

  bool Start(uint64_t group) {
    supervisor::StartFrame start;
    start.group = group;
    start.argv = {python_, "-u", ScriptPath()};
    for (char** entry = environ; *entry != nullptr; ++entry) start.environment.emplace_back(*entry);
    start.environment.push_back(absl::StrCat("RANK=", group));
    start.working_dir = folder_;
    start.warm.directory = folder_;
    start.warm.script = ScriptPath();
    start.warm.rank_variables = {"RANK"};
    start.warm.quiet_ms = kQuietMs;
    return supervisor_->Send(start).ok();
  }

  // Returns false if the supervisor is gone, or the time is over.
  bool Until(const std::function<bool()>& done) {
    while (!done()) {
      const int64_t left = absl::ToInt64Milliseconds(end_ - MonoNow());
      pollfd readable = {supervisor_->fd(), POLLIN, 0};
      if (left <= 0 || (poll(&readable, 1, static_cast<int>(left)) < 0 && errno != EINTR)) {
        return false;
      }
      const absl::StatusOr<std::vector<supervisor::Frame>> frames = supervisor_->Read();
      if (!frames.ok()) return false;
      for (const supervisor::Frame& frame : *frames) Take(frame);
    }
    return true;
  }

  void Take(const supervisor::Frame& frame) {
    if (const auto* output = std::get_if<supervisor::OutputFrame>(&frame)) {
      if (output->stream == kStandardOutput) outputs_[output->group] += output->bytes;
    } else if (const auto* exited = std::get_if<supervisor::ExitedFrame>(&frame)) {
      ends_[exited->group] = EndOf(*exited);
    } else if (const auto* started = std::get_if<supervisor::StartedFrame>(&frame)) {
      if (started->group == kWarm) why_plain_ = started->why_plain;
    } else if (const auto* said = std::get_if<supervisor::TemplateFrame>(&frame)) {
      TakeTemplate(*said);
    }
  }

  void TakeTemplate(const supervisor::TemplateFrame& said) {
    constexpr absl::string_view kGivenUp = "no warm start: ";
    for (const std::string& note : said.notes) {
      if (absl::StartsWith(note, kGivenUp))
        given_up_ = note.substr(kGivenUp.size());
      else
        result_.notes.push_back(note);
    }
    if (said.pid != 0) template_ = said;
  }

  static std::string EndOf(const supervisor::ExitedFrame& exited) {
    if (exited.exec_errno != 0) {
      return absl::StrCat(exited.exec_step, ": ", strerror(exited.exec_errno));
    }
    const std::vector<std::string> lines =
        absl::StrSplit(exited.last_lines, '\n', absl::SkipEmpty());
    return lines.empty() ? absl::StrCat("exit code ", exited.exit_code, ", signal ", exited.signal)
                         : lines.back();
  }

  static std::string Variable(const std::string& name) {
    const char* const value = getenv(name.c_str());
    return value == nullptr ? "" : value;
  }

  // The words of a worker's hello line; empty: it has not come yet.
  std::vector<std::string> HelloOf(uint64_t group) const {
    const std::string& said = outputs_[group];
    const size_t begin = said.find("hello ");
    const size_t end = said.find('\n', begin);
    if (begin == std::string::npos || end == std::string::npos) return {};
    std::vector<std::string> words = absl::StrSplit(said.substr(begin, end - begin), ' ');
    return words.size() == 4 ? words : std::vector<std::string>();
  }
  bool Ended(uint64_t group) const { return !ends_[group].empty(); }
  std::string TooLate() const {
    return absl::StrCat("it took longer than ", absl::FormatDuration(kWarmTrialLimit));
  }
  std::string ScriptPath() const { return folder_ + "/trial.py"; }

  const std::unique_ptr<supervisor::Client> supervisor_;
  const std::string folder_;
  const std::string python_;
  const MonoTime end_ = MonoNow() + kWarmTrialLimit;
  WarmTrial result_;
  std::string outputs_[kWarm + 1];
  std::string ends_[kWarm + 1];
  std::optional<supervisor::TemplateFrame> template_;
  std::string given_up_;
  std::string why_plain_;
};

WarmTrial Failed(std::string why) {
  WarmTrial trial;
  trial.failed = std::move(why);
  return trial;
}

}  // namespace

WarmTrial TryWarmStart(const std::string& python) {
  std::string folder =
      (std::filesystem::temp_directory_path() / "cadre_warm_trial_XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) {
    return Failed(absl::StrCat("cannot make ", folder, ": ", strerror(errno)));
  }
  auto supervisor = supervisor::Client::Start();
  WarmTrial result = supervisor.ok() ? Trial(*std::move(supervisor), folder, python).Run()
                                     : Failed(std::string(supervisor.status().message()));
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return result;
}

}  // namespace cadre::agent
