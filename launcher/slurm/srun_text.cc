#include "launcher/slurm/srun_text.h"

#include <string.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace cadre::launcher {
namespace {

// How a task ended, in srun's words. Empty: it did not end by itself.
std::string EndOf(const v1::Failure& failure) {
  const v1::WorkerExit& exit = failure.exit();
  if (failure.cause() == v1::OUT_OF_MEMORY || exit.out_of_memory()) return "Out Of Memory";
  if (!failure.has_exit()) return "";
  if (exit.exec_errno() != 0) {
    return absl::StrCat("cannot start: ", exit.exec_step(), ": ", ErrnoText(exit.exec_errno()));
  }
  if (exit.signal() != 0) {
    const char* const text = strsignal(exit.signal());
    return absl::StrCat(text == nullptr ? SignalText(exit.signal()) : text,
                        exit.core_dumped() ? " (core dumped)" : "");
  }
  return exit.exit_code() == 0 ? "" : absl::StrCat("Exited with exit code ", exit.exit_code());
}

}  // namespace

std::string StepIdOf(const v1::JobStatus& job) {
  if (job.step_of() != 0) return absl::StrCat(job.step_of(), ".", job.step());
  return absl::StrCat(job.submission(), ".0");
}

std::string TaskLabel(uint32_t task, uint32_t tasks) {
  const size_t width = absl::StrCat(tasks > 0 ? tasks - 1 : 0).size();
  const std::string number = absl::StrCat(task);
  return absl::StrCat(std::string(width - std::min(width, number.size()), ' '), number, ": ");
}

std::string TasksText(const std::vector<uint32_t>& tasks) {
  std::string text = tasks.size() == 1 ? "task " : "tasks ";
  for (size_t first = 0; first < tasks.size();) {
    size_t last = first;
    while (last + 1 < tasks.size() && tasks[last + 1] == tasks[last] + 1) ++last;
    absl::StrAppend(&text, first == 0 ? "" : ",", tasks[first],
                    last == first ? "" : absl::StrCat("-", tasks[last]));
    first = last + 1;
  }
  return text;
}

std::string RunningText(const v1::JobStatus& job) {
  const std::string step = absl::StrCat("StepId=", StepIdOf(job));
  if (job.world_size() == 0) {
    return absl::StrCat(step, job.waiting_for().empty() ? " is starting" : " waits for ",
                        EscapeControl(job.waiting_for()));
  }
  std::vector<uint32_t> tasks;
  for (uint32_t task = 0; task < job.world_size(); ++task) tasks.push_back(task);
  const bool all = job.workers_running() == job.world_size();
  return absl::StrCat(step, " ", TasksText(tasks), ": ",
                      all ? "running" : absl::StrCat(job.workers_running(), " running"));
}

std::vector<std::string> FailureLines(const v1::JobStatus& job) {
  const v1::Verdict& verdict = job.verdict();
  std::vector<std::string> lines;
  if (verdict.outcome() == v1::SUCCEEDED) return lines;
  std::map<std::pair<std::string, std::string>, std::vector<uint32_t>> tasks;
  const auto add = [&tasks](const v1::Failure& failure) {
    const std::string end = EndOf(failure);
    if (failure.rank() >= 0 && !end.empty()) {
      tasks[{failure.node(), end}].push_back(static_cast<uint32_t>(failure.rank()));
    }
  };
  if (verdict.has_root_cause()) add(verdict.root_cause());
  const bool by_task = !tasks.empty();
  for (const v1::Failure& failure : verdict.collateral()) add(failure);
  if (!by_task) {
    const std::string how = verdict.outcome() == v1::CANCELLED_PHASE ? "CANCELLED" : "FAILED";
    lines.push_back(absl::StrCat("StepId=", StepIdOf(job), " ", how,
                                 verdict.message().empty() ? "" : ": ",
                                 EscapeControl(verdict.message())));
  }
  for (auto& [where, which] : tasks) {
    std::sort(which.begin(), which.end());
    lines.push_back(
        absl::StrCat(EscapeControl(where.first), ": ", TasksText(which), ": ", where.second));
  }
  return lines;
}

}  // namespace cadre::launcher
