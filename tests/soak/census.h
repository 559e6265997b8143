// Counts what one soak has on this machine: processes and their resources, and files. Everything
// that the soak starts has a mark in its environment. Also decides whether counts grow. Linux; any
// thread.
#ifndef CADRE_TESTS_SOAK_CENSUS_H_
#define CADRE_TESTS_SOAK_CENSUS_H_

#include <sys/types.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace cadre {

// One count of each measurement, such as a server's descriptors.
struct Series {
  std::string name;
  // By which part of the first value, and by how much in addition, the last value may be larger:
  // caches, and what is kept for display, grow until they are full.
  double slack_part = 0;
  int64_t slack = 0;
  std::vector<int64_t> values;
};

// With fewer measurements growth cannot be told from noise.
inline constexpr size_t kFewestMeasurements = 9;

// Returns a line for each series that grows: even the smallest value of its last third exceeds the
// largest of its first third plus the slack. This finds a leak per fault, and ignores noise.
std::vector<std::string> Growing(const std::vector<Series>& series);

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

// The live processes with the mark. Zombies have no environment.
std::vector<ProcessEntry> MarkedProcesses(absl::string_view mark);
// A line for each process that has ended and that one of `parents` has not waited for.
std::vector<std::string> Zombies(const std::set<pid_t>& parents);
// Zeroes if there is no such process.
ProcessUse UseOf(pid_t pid);

// The entries of the directory whose names begin with `prefix`; 0 if there is no such directory.
int CountEntries(const std::string& directory, absl::string_view prefix);
// The directories below it, at any depth.
int CountDirectories(const std::string& directory);
// The size of the files in it.
int64_t BytesIn(const std::string& directory);
// The files in /dev/shm that belong to this user.
std::set<std::string> SharedMemoryFiles();

// A cgroup (version 2) into which this process moves, with all that it starts from now on, so that
// cgroups made in it are the soak's. The destructor leaves and removes it.
class OwnCgroup {
 public:
  explicit OwnCgroup(const std::string& name);
  ~OwnCgroup();
  OwnCgroup(const OwnCgroup&) = delete;
  OwnCgroup& operator=(const OwnCgroup&) = delete;

  // Empty if none could be made.
  const std::string& path() const { return path_; }

 private:
  std::string parent_;
  std::string path_;
};

}  // namespace cadre

#endif  // CADRE_TESTS_SOAK_CENSUS_H_
