#include "launcher/commands/job_source.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "launcher/flags/nearest.h"
#include "launcher/flags/run_options.h"
#include "launcher/spec/scalars.h"

namespace cadre::launcher {
namespace {

constexpr size_t kNamesShown = 5;

// On the command line. A variable is there for all commands.
bool Given(const Settings& settings, const char* flag) {
  const std::optional<Setting> setting = settings.Get(flag);
  return setting.has_value() && setting->origin == absl::StrCat("--", flag);
}

bool NamesServer(const Settings& settings) { return settings.Get("server").has_value(); }

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
  std::vector<std::string> all;
  if (!given.empty()) all.push_back(std::filesystem::absolute(given).lexically_normal());
  if (Given(settings, "log-dir")) return all;
  for (const std::string& known : KnownLogDirectories()) {
    if (!absl::c_linear_search(all, known)) all.push_back(known);
  }
  return all;
}

namespace {

// The name that `cadre run` gives a job of this program, where it is no job's name.
std::string NameOf(const std::string& wanted) {
  return CheckJobName(wanted).ok() ? wanted : JobNameOfProgram(wanted);
}

// One that somebody knows of.
struct Known {
  std::string job;
  // When it began, as in v1::JobStatus.
  std::string run;
  // nullopt: a server's or a launcher's.
  std::optional<PastRun> past;
};

void SortNewestFirst(std::vector<Known>* all) {
  std::stable_sort(all->begin(), all->end(),
                   [](const Known& a, const Known& b) { return a.run > b.run; });
}

std::vector<Known> KnownTo(ControlClient& server) {
  std::vector<Known> all;
  const absl::StatusOr<std::vector<v1::JobStatus>> jobs = server.List();
  if (!jobs.ok()) return all;
  for (const v1::JobStatus& job : *jobs) all.push_back({job.name(), job.run(), std::nullopt});
  return all;
}

// What Of() may find, the newest first.
std::vector<Known> AllKnown(const Settings& settings) {
  std::vector<Known> all;
  if (!AsksForFiles(settings)) {
    const auto server = ControlClient::Connect(settings);
    if (server.ok()) all = KnownTo(**server);
  }
  if (!NamesServer(settings) || AsksForFiles(settings)) {
    JobsHere here = FindJobsHere(settings);
    for (const v1::JobStatus& job : here.live) all.push_back({job.name(), job.run(), std::nullopt});
    for (PastRun& run : here.runs) all.push_back({run.job, run.run, std::move(run)});
  }
  SortNewestFirst(&all);
  return all;
}

std::vector<std::string> NamesOf(const std::vector<Known>& all) {
  std::vector<std::string> names;
  for (const Known& one : all) {
    if (!absl::c_linear_search(names, one.job)) names.push_back(one.job);
  }
  return names;
}

}  // namespace

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

bool AsksForFiles(const Settings& settings) {
  return Given(settings, "log-dir") || Given(settings, "run");
}

std::string JobSuggestion(const std::string& job, const std::vector<std::string>& newest_first) {
  if (newest_first.empty()) return "";
  std::string meant = Nearest(job, newest_first);
  for (const std::string& name : newest_first) {
    if (!meant.empty()) break;
    if (absl::StrContains(name, job) || absl::StrContains(job, name)) meant = name;
  }
  std::vector<std::string> shown = newest_first;
  if (shown.size() > kNamesShown) shown.resize(kNamesShown);
  for (std::string& name : shown) name = EscapeControl(name);
  return absl::StrCat(
      meant.empty() ? ";" : absl::StrCat("; did you mean '", EscapeControl(meant), "'?"),
      meant.empty() ? " the newest " : " The newest ", shown.size() == 1 ? "job is " : "jobs are ",
      absl::StrJoin(shown, ", "));
}

absl::StatusOr<JobSource> JobSource::Of(const Settings& settings, const std::string& wanted) {
  if (wanted.empty()) return OfNewest(settings);
  JobSource source(NameOf(wanted));
  const std::string& job = source.job_;
  if (AsksForFiles(settings)) {
    absl::Status files = source.UseFiles(settings);
    if (files.ok()) return source;
    if (!absl::IsNotFound(files) || Given(settings, "run")) return files;
    return absl::NotFoundError(
        absl::StrCat(files.message(), JobSuggestion(job, NamesOf(AllKnown(settings)))));
  }
  const bool named = NamesServer(settings);
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
  return absl::NotFoundError(absl::StrCat(
      "no launcher on this machine has job ", job, JobSuggestion(job, NamesOf(AllKnown(settings))),
      "; ", files.message(), "; ",
      // Nobody said that one should be there.
      absl::IsUnavailable(failed) ? "no server answers (--server names one)" : failed.message()));
}

absl::StatusOr<JobSource> JobSource::OfNewest(const Settings& settings) {
  const std::vector<Known> all = AllKnown(settings);
  if (all.empty()) {
    const std::vector<std::string> directories = LogDirectories(settings);
    return absl::NotFoundError(absl::StrCat(
        "no job is known",
        NamesServer(settings) && !AsksForFiles(settings) ? " to the server, or it does not answer"
        : directories.empty()
            ? " here"
            : absl::StrCat(", and none has left its files in ", absl::StrJoin(directories, ", ")),
        "; name a JOB, or its place with --log-dir or --server"));
  }
  const Known& newest = all.front();
  if (!newest.past.has_value()) {
    ASSIGN_OR_RETURN(JobSource source, Of(settings, newest.job));
    source.chosen_ = absl::StrCat("the newest job is ", newest.job,
                                  source.launcher_.has_value() ? ", which runs here" : "");
    return source;
  }
  JobSource source(newest.job);
  source.log_dir_ = newest.past->log_dir;
  ASSIGN_OR_RETURN(source.run_,
                   ChooseRun(source.Runs(), settings.GetOr("run", ""), absl::LocalTimeZone()));
  source.chosen_ =
      absl::StrCat("the newest job is ", newest.job, ", whose run of ",
                   BeganText(*source.run_, absl::LocalTimeZone()), " is in ", source.log_dir_);
  return source;
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

absl::Status JobSource::DoesNotRun() const {
  return absl::FailedPreconditionError(
      absl::StrCat("job ", job_, " does not run: its last run, of ",
                   BeganText(*run_, absl::LocalTimeZone()), ", has left its files in ", log_dir_));
}

absl::StatusOr<v1::JobStatus> JobSource::Get() {
  if (server_ != nullptr) {
    absl::StatusOr<v1::JobStatus> status = server_->Get(job_);
    return absl::IsNotFound(status.status()) ? WithSuggestion(status.status()) : status;
  }
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

absl::StatusOr<v1::JobStatus> JobSource::Cancel(const std::string& reason) {
  if (server_ != nullptr) {
    absl::StatusOr<v1::JobStatus> status = server_->Cancel(job_, reason);
    return absl::IsNotFound(status.status()) ? WithSuggestion(status.status()) : status;
  }
  if (!launcher_.has_value()) return DoesNotRun();
  return launcher_->Cancel(job_, reason);
}

absl::Status JobSource::WithSuggestion(const absl::Status& not_found) const {
  std::vector<Known> all = KnownTo(*server_);
  SortNewestFirst(&all);
  return absl::NotFoundError(absl::StrCat(not_found.message(), JobSuggestion(job_, NamesOf(all))));
}

absl::StatusOr<v1::GetStacksReply> JobSource::GetStacks(const v1::GetStacksRequest& request) {
  if (server_ != nullptr) return server_->GetStacks(request);
  if (launcher_.has_value()) return launcher_->GetStacks(request);
  return DoesNotRun();
}

absl::StatusOr<v1::ReadLogReply> JobSource::ReadLog(const v1::ReadLogRequest& request) {
  if (server_ != nullptr) return server_->ReadLog(request);
  if (run_.has_value()) return ReadLogOf(*run_, request);
  if (log_dir_.empty()) return absl::NotFoundError("the job's output is not kept");
  absl::StatusOr<v1::ReadLogReply> reply = ReadLogOf(RunOf(request), request);
  if (reply.ok()) reply->set_ended(false);  // it goes on
  return reply;
}

PastRun JobSource::RunOf(const v1::ReadLogRequest& request) const {
  return run_.has_value() ? *run_ : PastRun{job_, request.run(), log_dir_, 0};
}

std::vector<LogTime> JobSource::LogTimes(const v1::ReadLogRequest& request) const {
  if (log_dir_.empty()) return {};
  return ReadLogTimes(LogPathOf(RunOf(request), request));
}

std::vector<PastRun> JobSource::Runs() const { return MarkedRunsIn(log_dir_, job_); }

std::vector<v1::JobStatus> LiveJobsHere(const Settings& settings) {
  std::vector<v1::JobStatus> live;
  if (AsksForFiles(settings) || NamesServer(settings)) return live;
  for (const LocalLauncher& launcher : LocalLauncher::All()) {
    const absl::StatusOr<std::vector<v1::JobStatus>> jobs = launcher.List();
    if (jobs.ok()) live.insert(live.end(), jobs->begin(), jobs->end());
  }
  return live;
}

JobsHere FindJobsHere(const Settings& settings) {
  JobsHere here;
  here.live = LiveJobsHere(settings);
  std::set<std::string> seen;
  for (const v1::JobStatus& job : here.live) seen.insert(job.name());
  std::vector<PastRun> all;
  for (const std::string& directory : LogDirectories(settings)) {
    for (PastRun& run : RunsIn(directory, "", &here.left_out)) all.push_back(std::move(run));
  }
  SortNewestFirst(&all);
  for (PastRun& run : all) {
    if (seen.insert(run.job).second) here.runs.push_back(std::move(run));
  }
  MarkSuspended(here.runs);
  return here;
}

}  // namespace cadre::launcher
