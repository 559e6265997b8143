// What there is on this machine of one soak: processes, what they hold, and what lies about in
// files. Everything that the soak starts carries a mark in its environment. Linux; any thread.
#ifndef CADRE_TESTS_SOAK_CENSUS_H_
#define CADRE_TESTS_SOAK_CENSUS_H_

#include <sys/types.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace cadre {

// The variable that holds a soak's mark.
inline constexpr char kSoakMark[] = "CADRE_SOAK";

enum class Role { kServer, kLauncher, kSupervisor, kWorker, kOther };
inline constexpr int kRoles = 5;

struct ProcessEntry {
  pid_t pid = 0;
  pid_t parent = 0;
  Role role = Role::kOther;
  // 'R', 'S', 'T' (stopped), ...
  char state = '?';
  std::string command;
};

struct ProcessUse {
  int descriptors = 0;
  int threads = 0;
  // Memory of its own: not the program's file, whose pages come as they are first used.
  int64_t own_kib = 0;
};

// All that live and carry the mark; zombies have no environment.
std::vector<ProcessEntry> MarkedProcesses(absl::string_view mark);
// Processes that ended and that one of `parents` has not waited for, a line each.
std::vector<std::string> Zombies(const std::set<pid_t>& parents);
// Zeroes when there is no such process.
ProcessUse UseOf(pid_t pid);

// Entries of the directory whose name begins with `prefix`; 0 when it is not there.
int CountEntries(const std::string& directory, absl::string_view prefix);
// Directories below it, at any depth.
int CountDirectories(const std::string& directory);
// Of the files in it.
int64_t BytesIn(const std::string& directory);
// Files in /dev/shm that belong to this user.
std::set<std::string> SharedMemoryFiles();

// A cgroup (version 2) that this process and what it starts from now on live in, so that what is
// made in it is the soak's. Left and removed by the destructor.
class OwnCgroup {
 public:
  explicit OwnCgroup(const std::string& name);
  ~OwnCgroup();
  OwnCgroup(const OwnCgroup&) = delete;
  OwnCgroup& operator=(const OwnCgroup&) = delete;

  // Empty: there is none to be had.
  const std::string& path() const { return path_; }

 private:
  std::string parent_;
  std::string path_;
};

}  // namespace cadre

#endif  // CADRE_TESTS_SOAK_CENSUS_H_
