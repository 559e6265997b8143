#include "agent/workers/python/warm_workers.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/string_view.h"
#include "agent/supervisor/frames.h"
#include "agent/workers/python/python_program.h"
#include "agent/workers/worker_start.h"

namespace cadre::agent {
namespace {

absl::string_view NameIn(absl::string_view entry) { return entry.substr(0, entry.find('=')); }

// Variables of the session in which the launcher was started; a launcher that adopts its workers
// has other values.
constexpr absl::string_view kOfTheSession[] = {
    "INVOCATION_ID",  "JOURNAL_STREAM", "SYSTEMD_EXEC_PID",
    "XDG_SESSION_ID", "SSH_CLIENT",     "SSH_CONNECTION",
    "SSH_TTY",        "SHLVL",          "_"};

bool IsOfTheSession(absl::string_view name) {
  return std::find(std::begin(kOfTheSession), std::end(kOfTheSession), name) !=
         std::end(kOfTheSession);
}

// Names of variables that differ between these workers, may differ between generations or nodes, or
// are not set for all workers.
std::vector<std::string> RankVariables(const std::vector<supervisor::StartFrame>& workers) {
  std::set<std::string> names;
  std::map<absl::string_view, std::map<absl::string_view, size_t>> entries;  // by name: how often
  for (const supervisor::StartFrame& worker : workers) {
    for (const std::string& entry : worker.assignment) names.emplace(NameIn(entry));
    for (const std::string& entry : worker.environment) ++entries[NameIn(entry)][entry];
  }
  for (const auto& [name, values] : entries) {
    const bool same = values.size() == 1 && values.begin()->second == workers.size();
    const bool styled = IsLauncherStyleVariable(name);
    if (!same || styled || IsOfTheSession(name)) names.emplace(name);
  }
  return {names.begin(), names.end()};
}

}  // namespace

void AllowWarmStart(const v1::RestartPolicy& restart, const std::string& directory,
                    std::vector<supervisor::StartFrame>& workers) {
  const bool warm = !restart.has_warm() || restart.warm();
  const auto rank_variables = warm ? RankVariables(workers) : std::vector<std::string>();
  for (supervisor::StartFrame& worker : workers) {
    worker.warm.directory = directory;
    if (!warm) continue;
    const std::optional<PythonCommand> program = PythonProgramOf(worker.argv);
    if (!program.has_value()) continue;
    worker.warm.script = program->script;
    worker.warm.module = program->module;
    worker.warm.preload = {restart.preload().begin(), restart.preload().end()};
    worker.warm.rank_variables = rank_variables;
  }
}

}  // namespace cadre::agent
