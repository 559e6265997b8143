// What /proc tells about a worker's processes. Reads nothing that waits for the process itself.
// Stateless; any thread.
#ifndef CADRE_AGENT_EVIDENCE_PROCESS_LOOK_H_
#define CADRE_AGENT_EVIDENCE_PROCESS_LOOK_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace cadre::agent {

// Processes of one worker, and threads of one process, that are looked at.
inline constexpr size_t kMaxProcessesLookedAt = 16;
inline constexpr size_t kMaxThreadsLookedAt = 64;

struct ProcessLook {
  // Letter of /proc/<pid>/stat: T or t where any process of the worker is stopped, else the
  // worker's own; '\0' when there is none.
  char state = '\0';
  // Cores that its processes used or waited for between two looks.
  double cores = 0;
  // Where the leader's main thread sleeps; empty where the kernel does not tell.
  std::string wchan;
};

// The processes of the sessions that these workers lead, by worker, the worker itself first.
std::map<pid_t, std::vector<pid_t>> FindSessions(const std::set<pid_t>& workers);

// Nanoseconds in which threads of these processes ran or were ready to run, ever. A process that is
// gone counts as nothing.
int64_t BusyNs(const std::vector<pid_t>& processes);

// Leaves `cores` at 0: it takes two looks, which the caller has.
ProcessLook LookAt(const std::vector<pid_t>& processes);

// A line for each thread of a process: state, wchan; and its kernel stack (for root).
std::string DescribeThreads(pid_t process);

// All that is worth reading of each process: /proc/<pid>/status, and state, wchan and kernel stack
// (for root) of its threads.
std::string DescribeProcesses(const std::vector<pid_t>& processes);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_EVIDENCE_PROCESS_LOOK_H_
