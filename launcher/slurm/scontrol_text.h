// scontrol: what it is asked for, and its texts about jobs, steps, nodes and the partition. Pure.
#ifndef CADRE_LAUNCHER_SLURM_SCONTROL_TEXT_H_
#define CADRE_LAUNCHER_SLURM_SCONTROL_TEXT_H_

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "launcher/slurm/job_change.h"
#include "launcher/slurm/job_record.h"
#include "launcher/slurm/sinfo_text.h"
#include "launcher/slurm/squeue_text.h"

namespace cadre::launcher {

struct ScontrolRequest {
  enum class What {
    kHelp,
    kVersion,
    kHostNames,
    kHostList,
    kHostListSorted,
    kJobs,
    kSteps,
    kNodes,
    kPartitions,
    kHold,
    kRelease,
    kRequeue,
    kRequeueHold,
    kUpdate,
  };
  What what = What::kHelp;
  // The list of hosts, the id of a job or step, or a name. Empty: all, or what SLURM_JOB_NODELIST
  // says.
  std::string which;
  // The jobs of kHold and those that follow it, by id or by name.
  std::vector<WantedId> ids;
  std::set<std::string> names;
  // Of kUpdate.
  JobChange change;
  // Each record is one line.
  bool one_line = false;
  bool json = false;
};

// Times such as "now+1hour" are counted from `now`. INVALID_ARGUMENT: the message follows
// "scontrol: "; it is also the answer to what only an administrator of Slurm, or a later version of
// Cadre, can do.
absl::StatusOr<ScontrolRequest> ReadScontrol(const std::vector<std::string>& arguments,
                                             absl::Time now, absl::TimeZone zone);

// A name on each line. INVALID_ARGUMENT: the list is malformed.
absl::StatusOr<std::string> HostNames(absl::string_view list);
// "a1,a2" as "a[1-2]".
absl::StatusOr<std::string> HostList(absl::string_view list, bool sorted);

// Records as "Key=value" in lines, or in one line.
std::string JobDetails(const JobRecord& job, bool one_line, const TextSurroundings& at);
std::string StepDetails(const JobRecord& step, bool one_line, const TextSurroundings& at);
std::string NodeDetails(const NodeRecord& node, bool one_line);
std::string PartitionDetails(const std::vector<NodeRecord>& nodes, bool one_line);

std::string ScontrolHelp();

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SLURM_SCONTROL_TEXT_H_
