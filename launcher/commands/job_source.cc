#include "launcher/commands/job_source.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/status_macros.h"

namespace cadre::launcher {
namespace {

bool Given(const Settings& settings, const char* flag) { return settings.Get(flag).has_value(); }

// Marks the runs whose launchers are suspended: those of their jobs that began last.
void MarkSuspended(std::vector<PastRun>& runs) {
  for (const SuspendedLauncher& launcher : LocalLauncher::Suspended()) {
    const auto run = std::find_if(runs.rbegin(), runs.rend(), [&](const PastRun& one) {
      return one.job == launcher.job && one.log_dir == launcher.log_dir;
    });
    if (run != runs.rend()) run->suspended = launcher.pid;
  }
}

// The runs there, so marked.
std::vector<PastRun> MarkedRunsIn(const std::string& log_dir, const std::string& job) {
  std::vector<PastRun> runs = RunsIn(log_dir, job);
  MarkSuspended(runs);
  return runs;
}

}  // namespace

std::vector<std::string> LogDirectories(const Settings& settings) {
  const std::string given = settings.GetOr("log-dir", "");
  if (given.empty()) return KnownLogDirectories();
  return {std::filesystem::absolute(given).lexically_normal()};
}

std::vector<Flag> JobSourceFlags() {
  std::vector<Flag> flags = ControlFlags();
  flags.push_back({"log-dir", "DIR",
                   "Ask no server: read what a run left there [./logs and the directories used "
                   "last, where no server "
                   "knows the job]."});
  flags.push_back({"run", "N",
                   "Ask no server: the run with this number, 'previous', or the one that began "
                   "then, as 'cadre status "
                   "JOB --log-dir DIR' lists them [the newest]."});
  return flags;
}

bool NamesSource(const Settings& settings) {
  return Given(settings, "server") || Given(settings, "log-dir") || Given(settings, "run");
}

absl::StatusOr<JobSource> JobSource::Of(const Settings& settings, const std::string& job) {
  JobSource source(job);
  if (Given(settings, "log-dir") || Given(settings, "run")) {
    RETURN_IF_ERROR(source.UseFiles(settings));
    return source;
  }
  const bool named = Given(settings, "server");
  if (!named) {
    for (LocalLauncher& launcher : LocalLauncher::All()) {
      const absl::StatusOr<v1::JobStatus> status = launcher.Get(job);
      if (!status.ok()) continue;
      source.log_dir_ = launcher.LogDir().value_or("");
      source.launcher_ = std::move(launcher);
      return source;
    }
  }
  absl::StatusOr<std::unique_ptr<ControlClient>> client = ControlClient::Connect(settings);
  absl::Status failed = client.status();
  if (client.ok()) {
    source.server_ = *std::move(client);
    if (named) return source;
    failed = source.server_->Get(job).status();
    if (failed.ok()) return source;
    source.server_.reset();
  }
  if (named) return failed;
  const absl::Status files = source.UseFiles(settings);
  if (files.ok()) return source;
  if (!absl::IsNotFound(files)) return files;
  return absl::NotFoundError(absl::StrCat("no launcher on this machine has job ", job, "; ",
                                          files.message(), "; ", failed.message()));
}

absl::Status JobSource::UseFiles(const Settings& settings) {
  const std::vector<std::string> directories = LogDirectories(settings);
  for (const std::string& directory : directories) {
    const std::vector<PastRun> runs = MarkedRunsIn(directory, job_);
    if (runs.empty()) continue;
    ASSIGN_OR_RETURN(run_, ChooseRun(runs, settings.GetOr("run", ""), absl::LocalTimeZone()));
    log_dir_ = directory;
    return absl::OkStatus();
  }
  if (directories.empty()) {
    return absl::NotFoundError("there is no log directory ./logs, and none was used before");
  }
  return absl::NotFoundError(absl::StrCat("no run of job ", job_, " has left its files in ",
                                          absl::StrJoin(directories, ", ")));
}

absl::StatusOr<v1::JobStatus> JobSource::Get() {
  if (server_ != nullptr) return server_->Get(job_);
  if (launcher_.has_value()) {
    absl::StatusOr<v1::JobStatus> status = launcher_->Get(job_);
    if (!absl::IsUnavailable(status.status())) return status;
    // Its job has ended, and the launcher with it.
    const std::vector<PastRun> runs = log_dir_.empty() ? std::vector<PastRun>() : Runs();
    if (runs.empty()) return status;
    launcher_.reset();
    run_ = runs.back();
  }
  return StatusOf(*run_);
}

absl::StatusOr<v1::GetStacksReply> JobSource::GetStacks(const v1::GetStacksRequest& request) {
  if (server_ != nullptr) return server_->GetStacks(request);
  if (launcher_.has_value()) return launcher_->GetStacks(request);
  return absl::FailedPreconditionError(
      absl::StrCat("job ", job_, " does not run: its last run, of ",
                   BeganText(*run_, absl::LocalTimeZone()), ", has left its files in ", log_dir_));
}

absl::StatusOr<v1::ReadLogReply> JobSource::ReadLog(const v1::ReadLogRequest& request) {
  if (server_ != nullptr) return server_->ReadLog(request);
  if (run_.has_value()) return ReadLogOf(*run_, request);
  if (log_dir_.empty()) return absl::NotFoundError("the job's output is not kept");
  absl::StatusOr<v1::ReadLogReply> reply =
      ReadLogOf(PastRun{job_, request.run(), log_dir_, 0}, request);
  if (reply.ok()) reply->set_ended(false);  // it goes on
  return reply;
}

std::vector<PastRun> JobSource::Runs() const { return MarkedRunsIn(log_dir_, job_); }

JobsHere FindJobsHere(const Settings& settings) {
  JobsHere here;
  if (!NamesSource(settings)) {
    for (const LocalLauncher& launcher : LocalLauncher::All()) {
      const absl::StatusOr<std::vector<v1::JobStatus>> jobs = launcher.List();
      if (jobs.ok()) here.live.insert(here.live.end(), jobs->begin(), jobs->end());
    }
  }
  for (const std::string& directory : LogDirectories(settings)) {
    const std::vector<PastRun> runs = RunsIn(directory, "");
    for (size_t i = 0; i < runs.size(); ++i) {
      const bool newest = i + 1 == runs.size() || runs[i + 1].job != runs[i].job;
      bool known = false;
      for (const PastRun& other : here.runs) known = known || other.job == runs[i].job;
      for (const v1::JobStatus& live : here.live) known = known || live.run() == runs[i].run;
      if (newest && !known) here.runs.push_back(runs[i]);
    }
  }
  MarkSuspended(here.runs);
  return here;
}

}  // namespace cadre::launcher
