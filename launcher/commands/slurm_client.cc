#include "launcher/commands/slurm_client.h"

#include <pwd.h>
#include <stdlib.h>

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "agent/cluster/users.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "launcher/commands/commands.h"

namespace cadre::launcher {

absl::StatusOr<std::unique_ptr<ControlClient>> ConnectToServer() {
  ASSIGN_OR_RETURN(const Settings settings, ClientSettings(Parsed(), ControlFlags()));
  return ControlClient::Connect(settings);
}

absl::StatusOr<ServerJobs> LoadJobs(ControlClient& client) {
  ServerJobs jobs;
  ASSIGN_OR_RETURN(jobs.jobs, client.List());
  ASSIGN_OR_RETURN(jobs.nodes, client.Nodes());
  return jobs;
}

absl::Status LoadEndedJobs(ControlClient& client, const std::vector<JobRecord>& records,
                           ServerJobs* jobs) {
  std::set<uint64_t> ids;
  for (const JobRecord& record : records) {
    if (record.HasEnded() && record.nodes.empty()) ids.insert(record.server_id);
  }
  for (v1::JobStatus& job : jobs->jobs) {
    if (ids.count(job.submission()) == 0) continue;
    absl::StatusOr<v1::JobStatus> whole = client.Get(absl::StrCat(job.submission()));
    // It may have been dropped meanwhile.
    if (absl::IsNotFound(whole.status())) continue;
    RETURN_IF_ERROR(whole.status());
    job = *std::move(whole);
  }
  return absl::OkStatus();
}

TextSurroundings HereAndNow() {
  const char* const format = getenv("SLURM_TIME_FORMAT");
  // Each user is looked up once.
  auto uids = std::make_shared<std::map<std::string, std::optional<uint32_t>>>();
  const auto uid_of = [uids](const std::string& user) {
    const auto known = uids->find(user);
    if (known != uids->end()) return known->second;
    const absl::StatusOr<agent::UserEntry> found = agent::FindUser(user);
    std::optional<uint32_t>& uid = (*uids)[user];
    if (found.ok()) uid = found->uid;
    return uid;
  };
  return {absl::Now(), absl::LocalTimeZone(), format == nullptr ? "" : format, uid_of};
}

absl::StatusOr<std::set<std::string>> UserNames(const std::vector<std::string>& given, bool me) {
  std::set<std::string> names;
  if (me) {
    ASSIGN_OR_RETURN(const agent::UserEntry user, agent::ThisUser());
    names.insert(user.name);
  }
  for (const std::string& one : given) {
    uint32_t uid = 0;
    const passwd* const user = absl::SimpleAtoi(one, &uid) ? getpwuid(uid) : nullptr;
    names.insert(user == nullptr ? one : user->pw_name);
  }
  return names;
}

int FailAsSlurm(absl::string_view text) { return Fail(1, absl::StrCat("error: ", text)); }

int FailUsage(absl::string_view command, const absl::Status& error) {
  Notice(error.message());
  return Fail(1, absl::StrCat("try '", command, " --help' for more information"));
}

int PrintSlurmVersion() { return Print(absl::StrCat("slurm 23.02.0 (cadre ", kVersion, ")\n")); }

}  // namespace cadre::launcher
