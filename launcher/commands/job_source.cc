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

// Whether the flag is on the command line. An environment variable does not count, because it is
// set for all commands.
bool Given(const Settings& settings, const char* flag) {
  const std::optional<Setting> setting = settings.Get(flag);
  return setting.has_value() && setting->origin == absl::StrCat("--", flag);
}

bool NamesServer(const Settings& settings) { return settings.Get("server").has_value(); }

// Marks the runs whose launcher is suspended: the newest run of each suspended launcher's job.
void MarkSuspended(std::vector<PastRun>& runs) {
  for (const SuspendedLauncher& launcher : LocalLauncher::Suspended()) {
    const auto run = std::find_if(runs.rbegin(), runs.rend(), [&](const PastRun& one) {
      return one.job == launcher.job && one.log_dir == launcher.log_dir;
    });
    if (run != runs.rend()) run->suspended = launcher.pid;
  }
}

// The runs in that directory, with suspended ones marked.
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

// If `wanted` is no job's name, returns the name that `cadre run` gives a job of this program.
std::string NameOf(const std::string& wanted) {
  return CheckJobName(wanted).ok() ? wanted : JobNameOfProgram(wanted);
}

// A job known from a server, a launcher or the files of a run.
struct KnownJob {
  std::string job;
  // Its LastingName() at a server or a launcher.
  std::string asked;
  // When the job began, as in v1::JobStatus.
  std::string run;
  // The files of the run; nullopt: the job is a server's or a launcher's.
  std::optional<PastRun> past;
};

void SortNewestFirst(std::vector<KnownJob>* all) {
  std::stable_sort(all->begin(), all->end(),
                   [](const KnownJob& a, const KnownJob& b) { return a.run > b.run; });
}

KnownJob Known(const v1::JobStatus& job) {
  return {job.name(), LastingName(job), job.run(), std::nullopt};
}

std::vector<KnownJob> JobsOfServer(ControlClient& server) {
  std::vector<KnownJob> all;
  const absl::StatusOr<std::vector<v1::JobStatus>> jobs = server.List();
  if (!jobs.ok()) return all;
  for (const v1::JobStatus& job : *jobs) all.push_back(Known(job));
  return all;
}

// All jobs that Open() may find, the newest first.
std::vector<KnownJob> AllKnownJobs(const Settings& settings) {
  std::vector<KnownJob> all;
  if (!AsksForFiles(settings)) {
    const auto server = ControlClient::Connect(settings);
    if (server.ok()) all = JobsOfServer(**server);
  }
  if (!NamesServer(settings) || AsksForFiles(settings)) {
    LocalJobs here = FindLocalJobs(settings);
    for (const v1::JobStatus& job : here.live) all.push_back(Known(job));
    for (PastRun& run : here.runs) all.push_back({run.job, run.job, run.run, std::move(run)});
  }
  SortNewestFirst(&all);
  return all;
}

std::vector<std::string> NamesOf(const std::vector<KnownJob>& all) {
  std::vector<std::string> names;
  for (const KnownJob& one : all) {
    if (!absl::c_linear_search(names, one.job)) names.push_back(one.job);
  }
  return names;
}

}  // namespace

std::string LastingName(const v1::JobStatus& job) {
  if (job.submission() == 0 || job.submitted_unix_ms() == 0) return job.name();
  return absl::StrCat(job.submission());
}

std::vector<Flag> JobSourceFlags() {
  std::vector<Flag> flags = ControlFlags();
  flags.push_back({"log-dir", "DIR",
                   "Ask no server, but read the files that runs left in DIR [./logs and the log "
                   "directories used last, if no server knows the job]."});
  flags.push_back({"run", "N",
                   "Ask no server, but read this run's files: its number, 'previous', or its start "
                   "time, as 'cadre status JOB --log-dir DIR' lists them [the newest]."});
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

absl::StatusOr<JobSource> JobSource::Open(const Settings& settings, const std::string& wanted) {
  if (wanted.empty()) return OpenNewest(settings);
  JobSource source(NameOf(wanted));
  const std::string& job = source.job_;
  if (AsksForFiles(settings)) {
    absl::Status files = source.UseFiles(settings);
    if (files.ok()) return source;
    if (!absl::IsNotFound(files) || Given(settings, "run")) return files;
    return absl::NotFoundError(
        absl::StrCat(files.message(), JobSuggestion(job, NamesOf(AllKnownJobs(settings)))));
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
    failed = source.AskServer().status();
    if (failed.ok()) return source;
    source.server_.reset();
  }
  if (named) return failed;
  const absl::Status files = source.UseFiles(settings);
  if (files.ok()) return source;
  if (!absl::IsNotFound(files)) return files;
  // The user has not named a server, so it is no error that none answers.
  const absl::string_view server =
      absl::IsUnavailable(failed) ? "no server answers (name one with --server)" : failed.message();
  return absl::NotFoundError(absl::StrCat(
      "job ", job, " was not found: no launcher on this machine runs it; ", files.message(), "; ",
      server, JobSuggestion(job, NamesOf(AllKnownJobs(settings)))));
}

absl::StatusOr<JobSource> JobSource::OpenNewest(const Settings& settings) {
  const std::vector<KnownJob> all = AllKnownJobs(settings);
  if (all.empty()) {
    const std::vector<std::string> directories = LogDirectories(settings);
    std::string where = "no job runs on this machine, and no log directory is known";
    if (NamesServer(settings) && !AsksForFiles(settings)) {
      where = "no job is known to the server, or the server does not answer";
    } else if (!directories.empty()) {
      where = absl::StrCat("no job runs on this machine, and no run has left its files in ",
                           FirstFew(directories, directories.size()));
    }
    return absl::NotFoundError(
        absl::StrCat(where, "; name a JOB, or where to look with --log-dir or --server"));
  }
  const KnownJob& newest = all.front();
  if (!newest.past.has_value()) {
    ASSIGN_OR_RETURN(JobSource source, Open(settings, newest.asked));
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
    return absl::NotFoundError(
        "no log directory is known: ./logs does not exist, and no run has used another one");
  }
  return absl::NotFoundError(absl::StrCat("no run of job ", job_, " has left its files in ",
                                          FirstFew(directories, directories.size())));
}

absl::Status JobSource::NotRunningError() const {
  return absl::FailedPreconditionError(
      absl::StrCat("job ", job_, " is not running: its last run, which began at ",
                   BeganText(*run_, absl::LocalTimeZone()), ", left its files in ", log_dir_));
}

absl::StatusOr<v1::JobStatus> JobSource::AskServer() {
  ASSIGN_OR_RETURN(v1::JobStatus status, server_->Get(asked_));
  if (id_ != 0 && id_ != status.submission()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job_, " has ended, and was submitted again"));
  }
  job_ = status.name();
  asked_ = LastingName(status);
  id_ = status.submission();
  return status;
}

absl::StatusOr<v1::JobStatus> JobSource::Get() {
  if (server_ != nullptr) {
    absl::StatusOr<v1::JobStatus> status = AskServer();
    return absl::IsNotFound(status.status()) ? WithSuggestion(status.status()) : status;
  }
  if (launcher_.has_value()) {
    absl::StatusOr<v1::JobStatus> status = launcher_->Get(job_);
    if (!absl::IsUnavailable(status.status())) return status;
    // The job has ended, and the launcher with it.
    const std::vector<PastRun> runs = log_dir_.empty() ? std::vector<PastRun>() : Runs();
    if (runs.empty()) return status;
    launcher_.reset();
    run_ = runs.back();
  }
  return StatusOf(*run_);
}

absl::StatusOr<v1::JobStatus> JobSource::Cancel(const std::string& reason) {
  if (server_ != nullptr) {
    absl::StatusOr<v1::JobStatus> status = server_->Cancel(asked_, reason);
    return absl::IsNotFound(status.status()) ? WithSuggestion(status.status()) : status;
  }
  if (!launcher_.has_value()) return NotRunningError();
  return launcher_->Cancel(job_, reason);
}

absl::Status JobSource::NotSubmittedError(const std::string& instead) const {
  if (!launcher_.has_value()) return NotRunningError();
  return absl::FailedPreconditionError(
      absl::StrCat("job ", job_,
                   " was started by 'cadre run' on this machine, and no server has it: ", instead));
}

absl::StatusOr<v1::JobStatus> JobSource::Requeue(const std::string& reason, bool hold) {
  if (server_ == nullptr) {
    return NotSubmittedError("it cannot be put into a queue; 'cadre cancel' stops it");
  }
  absl::StatusOr<v1::JobStatus> status = server_->Requeue(asked_, reason, hold);
  return absl::IsNotFound(status.status()) ? WithSuggestion(status.status()) : status;
}

absl::StatusOr<v1::JobStatus> JobSource::Update(const v1::JobUpdate& update) {
  if (server_ == nullptr) return NotSubmittedError("it is in no queue, and cannot be changed");
  absl::StatusOr<v1::JobStatus> status = server_->Update(asked_, update);
  return absl::IsNotFound(status.status()) ? WithSuggestion(status.status()) : status;
}

absl::StatusOr<v1::JobStatus> JobSource::Signal(int signal, v1::SignalJobRequest::Target target) {
  if (server_ == nullptr) {
    return NotSubmittedError("send the signal to its processes with kill(1)");
  }
  absl::StatusOr<v1::JobStatus> status = server_->Signal(asked_, signal, target);
  return absl::IsNotFound(status.status()) ? WithSuggestion(status.status()) : status;
}

absl::Status JobSource::WithSuggestion(const absl::Status& not_found) const {
  std::vector<KnownJob> all = JobsOfServer(*server_);
  SortNewestFirst(&all);
  return absl::NotFoundError(absl::StrCat(not_found.message(), JobSuggestion(job_, NamesOf(all))));
}

absl::StatusOr<v1::GetStacksReply> JobSource::GetStacks(v1::GetStacksRequest request) {
  request.set_job(server_ != nullptr ? asked_ : job_);
  if (server_ != nullptr) return server_->GetStacks(request);
  if (launcher_.has_value()) return launcher_->GetStacks(request);
  return NotRunningError();
}

absl::StatusOr<v1::ReadLogReply> JobSource::ReadLog(v1::ReadLogRequest request) {
  request.set_job(server_ != nullptr ? asked_ : job_);
  if (server_ != nullptr) return server_->ReadLog(request);
  if (run_.has_value()) return ReadLogOf(*run_, request);
  if (log_dir_.empty())
    return absl::NotFoundError(
        "the job's output was not written to files: it was started without a log directory");
  absl::StatusOr<v1::ReadLogReply> reply = ReadLogOf(RunOf(request), request);
  if (reply.ok()) reply->set_ended(false);  // the job still runs
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

std::vector<v1::JobStatus> LocalLiveJobs(const Settings& settings) {
  std::vector<v1::JobStatus> live;
  if (AsksForFiles(settings) || NamesServer(settings)) return live;
  for (const LocalLauncher& launcher : LocalLauncher::All()) {
    const absl::StatusOr<std::vector<v1::JobStatus>> jobs = launcher.List();
    if (jobs.ok()) live.insert(live.end(), jobs->begin(), jobs->end());
  }
  return live;
}

LocalJobs FindLocalJobs(const Settings& settings) {
  LocalJobs here;
  here.live = LocalLiveJobs(settings);
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
