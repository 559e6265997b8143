#include "agent/evidence/process_look.h"

#include <dirent.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/supervisor/processes/cgroup_files.h"
#include "agent/supervisor/processes/process_scan.h"

namespace cadre::agent {
namespace {

// Numbers that name entries of a directory, at most `limit` of them, in ascending order.
std::vector<pid_t> NumbersIn(const std::string& path, size_t limit) {
  std::vector<pid_t> numbers;
  DIR* directory = opendir(path.c_str());
  if (directory == nullptr) return numbers;
  while (const dirent* entry = readdir(directory)) {
    pid_t number = 0;
    if (numbers.size() >= limit) break;
    if (absl::SimpleAtoi(entry->d_name, &number) && number > 0) numbers.push_back(number);
  }
  closedir(directory);
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

int64_t ThreadBusyNs(const std::string& thread) {
  const std::string text = supervisor::KernelFileText(absl::StrCat(thread, "/schedstat"));
  const std::vector<absl::string_view> words =
      absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  int64_t ran = 0, waited = 0;
  if (words.size() < 2 || !absl::SimpleAtoi(words[0], &ran) ||
      !absl::SimpleAtoi(words[1], &waited)) {
    return 0;
  }
  return ran + waited;
}

}  // namespace

std::map<pid_t, std::vector<pid_t>> FindSessions(const std::set<pid_t>& workers) {
  std::map<pid_t, std::vector<pid_t>> sessions;
  for (const pid_t worker : workers) {
    if (supervisor::InspectProcess(worker).has_value()) sessions[worker].push_back(worker);
  }
  for (const pid_t pid : NumbersIn("/proc", SIZE_MAX)) {
    const auto process = supervisor::InspectProcess(pid);
    if (!process.has_value() || workers.count(process->session) == 0) continue;
    std::vector<pid_t>& session = sessions[process->session];
    if (pid != process->session && session.size() < kMaxProcessesLookedAt) session.push_back(pid);
  }
  return sessions;
}

int64_t BusyNs(const std::vector<pid_t>& processes) {
  int64_t busy = 0;
  for (const pid_t pid : processes) {
    const std::string tasks = absl::StrCat("/proc/", pid, "/task");
    for (const pid_t thread : NumbersIn(tasks, kMaxThreadsLookedAt)) {
      busy += ThreadBusyNs(absl::StrCat(tasks, "/", thread));
    }
  }
  return busy;
}

ProcessLook LookAt(const std::vector<pid_t>& processes) {
  ProcessLook look;
  for (const pid_t pid : processes) {
    const auto process = supervisor::InspectProcess(pid);
    if (!process.has_value()) continue;
    const bool stopped = process->state == 'T' || process->state == 't';
    if (look.state == '\0' || stopped) look.state = process->state;
  }
  if (!processes.empty())
    look.wchan = supervisor::KernelFunction(absl::StrCat("/proc/", processes.front()));
  return look;
}

std::string DescribeThreads(pid_t process) {
  std::string text;
  const std::string tasks = absl::StrCat("/proc/", process, "/task");
  for (const pid_t thread : NumbersIn(tasks, kMaxThreadsLookedAt)) {
    const std::string task = absl::StrCat(tasks, "/", thread);
    const auto state = supervisor::InspectProcess(thread);
    absl::StrAppend(&text, "-- thread ", thread, " state ",
                    state.has_value() ? std::string(1, state->state) : "?", " wchan ",
                    supervisor::KernelFunction(task), "\n",
                    supervisor::KernelFileText(absl::StrCat(task, "/stack")));
  }
  return text;
}

std::string DescribeProcesses(const std::vector<pid_t>& processes) {
  std::string text;
  for (const pid_t pid : processes) {
    absl::StrAppend(&text, "== process ", pid, "\n",
                    supervisor::KernelFileText(absl::StrCat("/proc/", pid, "/status")),
                    DescribeThreads(pid));
  }
  return text;
}

}  // namespace cadre::agent
