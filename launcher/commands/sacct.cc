// sacct: jobs and steps of a cluster, also those that have ended.
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "launcher/attach/control_client.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/slurm_client.h"
#include "launcher/slurm/accounted_job.h"
#include "launcher/slurm/sacct_text.h"
#include "proto/accounting.pb.h"

namespace cadre::launcher {
namespace {

// Whether a field is about the nodes of jobs. Those of a job that has ended are another request.
bool ShowsNodes(const SacctOptions& options) {
  const std::string format = absl::AsciiStrToLower(options.format);
  return options.json || absl::StrContains(format, "node") || absl::StrContains(format, "tres");
}

// Adds to the jobs of the server's state those that only its accounting still has.
void AddHistory(ControlClient& client, const SacctOptions& options,
                std::vector<v1::JobStatus>* jobs) {
  v1::HistoryRequest request;
  request.set_steps(!options.allocations_only);
  for (const std::string& user : options.selection.users) request.add_users(user);
  if (options.from != absl::InfinitePast()) {
    request.set_since_unix_ms(absl::ToUnixMillis(options.from));
  }
  if (options.until != absl::InfiniteFuture()) {
    request.set_until_unix_ms(absl::ToUnixMillis(options.until));
  }
  std::set<uint64_t> ids = IdsIn(options.selection.ids);
  if (!ids.empty()) {
    // Clients ask again and again for jobs that run.
    ids = UnknownIds(ids, *jobs);
    if (ids.empty()) return;
  }
  for (const uint64_t id : ids) request.add_ids(id);
  absl::StatusOr<v1::HistoryReply> history = client.History(request);
  if (history.ok() && !ids.empty()) {
    // The steps of an array's elements are known by the elements' own ids.
    request.clear_ids();
    for (const v1::AccountedJob& job : history->jobs()) {
      if (job.array() != 0 && job.batch()) request.add_ids(job.id());
    }
    AddAccounted({history->jobs().begin(), history->jobs().end()}, jobs);
    if (request.ids_size() == 0 || options.allocations_only) return;
    history = client.History(request);
  }
  // A server that keeps no accounting shows what it still knows, and so does one of an earlier
  // version.
  const bool has_none =
      absl::IsFailedPrecondition(history.status()) || absl::IsUnimplemented(history.status());
  if (!history.ok() && !has_none) Notice(history.status().message());
  if (history.ok()) AddAccounted({history->jobs().begin(), history->jobs().end()}, jobs);
}

int Run(const Parsed& parsed) {
  const TextSurroundings at = HereAndNow();
  absl::StatusOr<SacctOptions> options = ReadSacct(parsed.rest, ReadEnvironment(), at.now, at.zone);
  if (!options.ok()) return FailUsage("sacct", options.status());
  if (options->answer == SacctOptions::Answer::kHelp) return Print(SacctHelp());
  if (options->answer == SacctOptions::Answer::kFields) return Print(SacctFields());
  if (options->answer == SacctOptions::Answer::kVersion) return PrintSlurmVersion();
  const bool own = options->users.empty() && !options->all_users;
  const auto users = UserNames(options->users, own);
  if (!users.ok()) return FailAsSlurm(users.status().message());
  options->selection.users = *users;
  const auto client = ConnectToServer();
  if (!client.ok()) return FailAsSlurm(client.status().message());
  absl::StatusOr<ServerJobs> jobs = LoadJobs(**client);
  if (!jobs.ok()) return FailAsSlurm(jobs.status().message());
  std::vector<JobRecord> chosen = ChooseForSacct(jobs->Records(), *options, at.now);
  if (ShowsNodes(*options)) {
    const absl::Status loaded = LoadEndedJobs(**client, chosen, &*jobs);
    if (!loaded.ok()) return FailAsSlurm(loaded.message());
  }
  AddHistory(**client, *options, &jobs->jobs);
  chosen = ChooseForSacct(jobs->Records(), *options, at.now);
  const absl::StatusOr<std::string> text = SacctText(chosen, *options, at);
  return text.ok() ? Print(*text) : Fail(1, text.status().message());
}

}  // namespace

Command SacctCommand() {
  Command command;
  command.name = "sacct";
  command.summary = "Show jobs that run and have ended, as Slurm's sacct does.";
  command.own_syntax = true;
  command.run = Run;
  return command;
}

}  // namespace cadre::launcher
