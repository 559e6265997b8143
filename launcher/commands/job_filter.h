// The jobs that `cadre status` is to show: the flags --me, --user, --state and --node. They count
// only on the command line, as CADRE_USER is the user of `cadre agent`. Pure.
#ifndef CADRE_LAUNCHER_COMMANDS_JOB_FILTER_H_
#define CADRE_LAUNCHER_COMMANDS_JOB_FILTER_H_

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/flags/command.h"
#include "proto/job.pb.h"

namespace cadre::launcher {

// Of each kind that is not empty, a job has to fit one.
struct JobFilter {
  std::set<std::string> users;
  std::set<v1::JobPhase> states;
  std::set<std::string> nodes;
  // The user of this process, if users are named.
  std::string this_user;

  bool IsEmpty() const { return users.empty() && states.empty() && nodes.empty(); }
  // Whether it is about what the files of a run do not tell.
  bool NamesUsersOrNodes() const { return !users.empty() || !nodes.empty(); }
  bool Selects(const v1::JobStatus& job) const;
  // The same for a job of one of this user's launchers, which may name no owner.
  bool SelectsOwn(const v1::JobStatus& job) const;

 private:
  bool Fits(const v1::JobStatus& job, const std::string& owner) const;
};

std::vector<Flag> JobFilterFlags();

// `this_user` returns the user of this process; it is called if users are named. INVALID_ARGUMENT:
// a value is wrong; or what `this_user` returns, if --me needs it.
absl::StatusOr<JobFilter> ReadJobFilter(
    const Parsed& parsed, const std::function<absl::StatusOr<std::string>()>& this_user);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_JOB_FILTER_H_
