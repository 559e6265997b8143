#include "tests/soak/census.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/testing/process.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;

std::vector<pid_t> AllPids() {
  std::vector<pid_t> pids;
  std::error_code error;
  for (fs::directory_iterator entry("/proc", error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    pid_t pid = 0;
    if (absl::SimpleAtoi(entry->path().filename().string(), &pid)) pids.push_back(pid);
  }
  return pids;
}

struct Stat {
  char state = '?';
  pid_t parent = 0;
};

// False: there is no such process.
bool ReadStat(pid_t pid, Stat* stat) {
  const std::string text = ReadFileOrEmpty(absl::StrCat("/proc/", pid, "/stat"));
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return false;
  const std::vector<absl::string_view> words =
      absl::StrSplit(absl::string_view(text).substr(name_end + 1), ' ', absl::SkipEmpty());
  if (words.size() < 2) return false;
  stat->state = words[0][0];
  return absl::SimpleAtoi(words[1], &stat->parent);
}

Role RoleOf(absl::string_view command) {
  const absl::string_view program = command.substr(0, command.find(' '));
  if (absl::EndsWith(program, "cadre-supervisor")) return Role::kSupervisor;
  if (absl::EndsWith(program, "soak_worker")) return Role::kWorker;
  if (!absl::EndsWith(program, "/cadre")) return Role::kOther;
  const absl::string_view rest = command.substr(program.size());
  if (absl::StartsWith(rest, " server ")) return Role::kServer;
  return absl::StartsWith(rest, " run ") ? Role::kLauncher : Role::kOther;
}

// Where cgroup v2 is mounted, alone or beside v1, followed by the path of this process in it.
std::string CgroupOfThisProcess() {
  for (const absl::string_view line :
       absl::StrSplit(ReadFileOrEmpty("/proc/self/cgroup"), '\n', absl::SkipEmpty())) {
    absl::string_view path = line;
    if (!absl::ConsumePrefix(&path, "0::")) continue;
    for (const char* mount : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
      const std::string found = absl::StrCat(mount, path == "/" ? "" : path);
      if (access(absl::StrCat(mount, "/cgroup.procs").c_str(), F_OK) == 0) return found;
    }
  }
  return "";
}

bool MoveThisProcess(const std::string& cgroup) {
  const int fd = open(absl::StrCat(cgroup, "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool moved = write(fd, "0", 1) == 1;
  close(fd);
  return moved;
}

}  // namespace

std::vector<ProcessEntry> MarkedProcesses(absl::string_view mark) {
  const absl::string_view zero("\0", 1);
  const std::string entry = absl::StrCat(zero, kSoakMark, "=", mark, zero);
  std::vector<ProcessEntry> found;
  for (const pid_t pid : AllPids()) {
    // Entries end with zeros; one in front makes the first like the others.
    const std::string environment =
        absl::StrCat(zero, ReadFileOrEmpty(absl::StrCat("/proc/", pid, "/environ")));
    Stat stat;
    if (!absl::StrContains(environment, entry) || !ReadStat(pid, &stat)) continue;
    const std::string command = absl::StrReplaceAll(
        ReadFileOrEmpty(absl::StrCat("/proc/", pid, "/cmdline")), {{zero, " "}});
    found.push_back({pid, stat.parent, RoleOf(command), stat.state, command});
  }
  return found;
}

std::vector<std::string> Zombies(const std::set<pid_t>& parents) {
  std::vector<std::string> found;
  for (const pid_t pid : AllPids()) {
    Stat stat;
    if (!ReadStat(pid, &stat) || stat.state != 'Z' || parents.count(stat.parent) == 0) continue;
    const std::string directory = absl::StrCat("/proc/", pid);
    found.push_back(absl::StrCat(
        "zombie ", pid, " (", absl::StripSuffix(ReadFileOrEmpty(directory + "/comm"), "\n"), ", ",
        CountEntries(directory + "/task", ""), " threads), child of ", stat.parent, " (",
        absl::StripSuffix(ReadFileOrEmpty(absl::StrCat("/proc/", stat.parent, "/comm")), "\n"),
        ")"));
  }
  return found;
}

ProcessUse UseOf(pid_t pid) {
  ProcessUse use;
  const std::string directory = absl::StrCat("/proc/", pid);
  for (absl::string_view line :
       absl::StrSplit(ReadFileOrEmpty(directory + "/status"), '\n', absl::SkipEmpty())) {
    if (absl::ConsumePrefix(&line, "Threads:")) (void)absl::SimpleAtoi(line, &use.threads);
    if (absl::ConsumePrefix(&line, "RssAnon:") && absl::ConsumeSuffix(&line, " kB")) {
      (void)absl::SimpleAtoi(line, &use.own_kib);
    }
  }
  use.descriptors = CountEntries(directory + "/fd", "");
  return use;
}

int CountEntries(const std::string& directory, absl::string_view prefix) {
  int count = 0;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (absl::StartsWith(entry->path().filename().string(), prefix)) ++count;
  }
  return count;
}

int CountDirectories(const std::string& directory) {
  int count = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(directory, error);
       !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_directory(ignored)) ++count;
  }
  return count;
}

int64_t BytesIn(const std::string& directory) {
  int64_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    std::error_code gone;
    const uintmax_t size = entry->file_size(gone);
    if (!gone) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

std::set<std::string> SharedMemoryFiles() {
  std::set<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry("/dev/shm", error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    struct stat found;
    if (lstat(entry->path().c_str(), &found) == 0 && found.st_uid == getuid()) {
      names.insert(entry->path().filename().string());
    }
  }
  return names;
}

OwnCgroup::OwnCgroup(const std::string& name) : parent_(CgroupOfThisProcess()) {
  const std::string path = absl::StrCat(parent_, "/", name);
  if (parent_.empty() || mkdir(path.c_str(), 0755) != 0) return;
  if (MoveThisProcess(path)) {
    path_ = path;
  } else {
    rmdir(path.c_str());
  }
}

OwnCgroup::~OwnCgroup() {
  if (path_.empty()) return;
  MoveThisProcess(parent_);
  rmdir(path_.c_str());
}

std::vector<std::string> Growing(const std::vector<Series>& series) {
  std::vector<std::string> lines;
  for (const Series& one : series) {
    if (one.values.size() < kFewestMeasurements) continue;
    const auto third = static_cast<std::ptrdiff_t>(one.values.size() / 3);
    const int64_t first = *std::max_element(one.values.begin(), one.values.begin() + third);
    const int64_t last = *std::min_element(one.values.end() - third, one.values.end());
    const double allowed =
        static_cast<double>(first) * (1 + one.slack_part) + static_cast<double>(one.slack);
    if (static_cast<double>(last) <= allowed) continue;
    lines.push_back(absl::StrCat(one.name, " grew from at most ", first, " to at least ", last));
  }
  return lines;
}

}  // namespace cadre
