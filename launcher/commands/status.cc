// Commands about jobs: cadre status lists what runs, where, and since when; cadre why, stacks and
// timeline show one job.
#include "absl/status/status.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "agent/cluster/users.h"
#include "base/exit_codes.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "launcher/attach/control_client.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/job_filter.h"
#include "launcher/display/output_format.h"
#include "launcher/display/status_text.h"
#include "launcher/display/timeline_text.h"
#include "launcher/display/verdict_text.h"
#include "launcher/spec/scalars.h"
#include "proto/control.pb.h"
#include "rpc/job_progress.h"

namespace cadre::launcher {
namespace {

std::vector<Flag> StatusFlags() {
  std::vector<Flag> flags = JobSourceFlags();
  for (Flag& flag : JobFilterFlags()) flags.push_back(std::move(flag));
  flags.push_back({"watch", "",
                   "Keep showing it until the job ends; exits with the job's exit status. In a "
                   "pipe: a line for each change."});
  flags.push_back(
      {"all", "", absl::StrCat("All runs whose files are here [the newest ", kRunsShown, "].")});
  flags.push_back(OutputFlag());
  return flags;
}

std::string Json(const std::vector<v1::JobStatus>& jobs) {
  v1::ListJobsReply reply;
  for (const v1::JobStatus& job : jobs) *reply.add_jobs() = job;
  return JsonText(reply) + "\n";
}

// `nodes`: the cluster's nodes, if all jobs are shown.
std::string Text(const std::vector<v1::JobStatus>& jobs, const v1::ListNodesReply& nodes,
                 bool details) {
  const absl::Time now = absl::Now();
  if (!details) {
    const std::string table = JobsTable(jobs, now), cluster = ClusterSummary(nodes, jobs);
    return cluster.empty() ? table : absl::StrCat(table, "\n", cluster);
  }
  std::string text = absl::StrCat(JobText(jobs[0], now, absl::LocalTimeZone()), "\n",
                                  NodesTable(jobs[0]), AvoidedText(jobs[0]));
  const std::string warm = WarmStartsTable(jobs[0]);
  if (!warm.empty()) absl::StrAppend(&text, "\n", warm);
  if (jobs[0].timeline().recoveries_size() > 0) {
    absl::StrAppend(&text, "\n", RecoveriesText(jobs[0].timeline()));
  }
  return text;
}

// Prints past runs, as many as are to be shown, and lines for runs that cannot be read.
int PrintRuns(const Settings& settings, std::string text, const std::vector<PastRun>& runs,
              std::vector<std::string> left_out) {
  constexpr size_t kLeftOutShown = 3;
  const absl::StatusOr<bool> all = settings.Switch("all");
  if (!all.ok()) return Fail(kExitUsage, all.status().message());
  const std::string table =
      RunsTable(runs, *all ? runs.size() : kRunsShown, absl::LocalTimeZone(), &left_out);
  absl::StrAppend(&text, text.empty() || table.empty() ? "" : "\n", table);
  for (size_t i = 0; i < std::min(left_out.size(), kLeftOutShown); ++i) Notice(left_out[i]);
  if (left_out.size() > kLeftOutShown) {
    Notice(absl::StrCat(left_out.size() - kLeftOutShown, " more are not shown"));
  }
  return Print(text);
}

int ShowJob(const Parsed& parsed, const Settings& settings, bool json) {
  absl::StatusOr<JobSource> source = OpenJob(parsed, settings);
  if (!source.ok()) return Fail(ControlExit(source.status()), source.status().message());
  const absl::StatusOr<v1::JobStatus> job = source->Get();
  // Other runs of the job may be readable.
  const bool runs = source->run().has_value() && !settings.Get("run").has_value() && !json;
  if (!job.ok() && !runs) return Fail(ControlExit(job.status()), job.status().message());
  if (json) return Print(Json({*job}));
  if (!source->run().has_value()) return Print(Text({*job}, {}, true));
  std::vector<PastRun> shown = {*source->run()};
  if (runs) shown = source->Runs();
  SortNewestFirst(&shown);
  return PrintRuns(settings, "", shown, {});
}

// cadre status --watch: polls jobs twice a second and shows what has changed.

constexpr absl::Duration kWatchInterval = absl::Milliseconds(500);
// How long a server that has answered before may be away.
constexpr absl::Duration kWatchTimeout = absl::Seconds(15);
// The interval between two lines about a job's progress in a pipe.
constexpr absl::Duration kWatchProgressInterval = absl::Seconds(10);

struct SeenJobs {
  std::vector<v1::JobStatus> jobs;
  // The nodes of the cluster, if all jobs are shown.
  v1::ListNodesReply nodes;
};

struct StatusWatch {
  // Returns the one job that is watched, or all. UNAVAILABLE: a retry a moment later may succeed.
  std::function<absl::StatusOr<SeenJobs>()> poll;
  // Whether one job is watched, until it ends; otherwise all jobs are, without end.
  bool one_job = false;
  // Print a line of JSON for each change.
  bool json = false;
  // The block for a terminal: the jobs and, if all are watched, the cluster's nodes.
  std::function<std::string(const SeenJobs&)> text;
};

size_t TerminalRows() {
  winsize size = {};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 2 ? size.ws_row : 24;
}

// Draws one screen over the last one, without clearing it first, which would flicker.
std::string Screen(const std::string& text) {
  std::string screen = "\x1b[H";
  size_t rows = TerminalRows() - 1;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (rows-- == 0) break;
    absl::StrAppend(&screen, line, "\x1b[K\n");
  }
  return screen + "\x1b[J";
}

std::string EndText(const v1::JobStatus& job) {
  return absl::StrCat("job ", EscapeControl(job.name()), " ", OutcomeText(job.verdict()), "\n");
}

// Lines for a pipe.
class PipeLines {
 public:
  // `named`: with several jobs each line has the job's name.
  explicit PipeLines(bool named) : named_(named) {}

  std::string Update(const v1::JobStatus& job, absl::Time now) {
    One& one = jobs_[job.name()];
    std::string text;
    for (const std::string& line : one.lines.Update(job)) Add(job, line, &text);
    if (job.has_progress() && job.progress().step() != one.step &&
        now >= one.progress_at + kWatchProgressInterval) {
      one.step = job.progress().step();
      one.progress_at = now;
      Add(job, ProgressText(job.progress()), &text);
    }
    if (job.has_verdict() && !one.ended) {
      one.ended = true;
      text += EndText(job);
    }
    return text;
  }

 private:
  struct One {
    StatusLines lines;
    uint64_t step = 0;
    absl::Time progress_at = absl::InfinitePast();
    bool ended = false;
  };
  void Add(const v1::JobStatus& job, const std::string& line, std::string* text) const {
    absl::StrAppend(text, named_ ? absl::StrCat(EscapeControl(job.name()), ": ") : "", line, "\n");
  }

  const bool named_;
  std::map<std::string, One> jobs_;
};

// Returns the job's exit status when it has ended; another one, after a line on standard error, if
// `poll` fails.
int WatchStatus(const StatusWatch& watch) {
  const bool live = OnTerminal() && !watch.json;
  PipeLines plain(!watch.one_job);
  ClusterLines cluster;
  std::map<std::string, std::string> printed;  // JSON, by job
  // There was no answer yet: an error of the first request is reported at once.
  absl::Time answered = absl::InfinitePast();
  if (live && Print("\x1b[2J") != 0) return kExitInternal;
  for (;; absl::SleepFor(kWatchInterval)) {
    const absl::StatusOr<SeenJobs> seen = watch.poll();
    const absl::Time now = absl::Now();
    if (!seen.ok()) {
      const bool away =
          absl::IsUnavailable(seen.status()) || absl::IsDeadlineExceeded(seen.status());
      if (away && now < answered + kWatchTimeout) continue;
      return Fail(ControlExit(seen.status()), seen.status().message());
    }
    const std::vector<v1::JobStatus>& jobs = seen->jobs;
    answered = now;
    std::string text;
    for (const v1::JobStatus& job : jobs) {
      if (watch.json) {
        std::string line = JsonText(job) + "\n";
        if (printed[job.name()] != line) text += printed[job.name()] = std::move(line);
      } else if (!live) {
        text += plain.Update(job, now);
      }
    }
    if (!live && !watch.json) {
      for (const std::string& line : cluster.Update(seen->nodes))
        absl::StrAppend(&text, line, "\n");
    }
    if (live) text = Screen(watch.text(*seen));
    const bool ended = watch.one_job && jobs.front().has_verdict();
    if (ended && live) absl::StrAppend(&text, EndText(jobs.front()));
    if (!text.empty() && Print(text) != 0) return kExitInternal;
    if (ended) return jobs.front().verdict().exit_status();
  }
}

template <typename One, typename Predicate>
void KeepIf(std::vector<One>* all, const Predicate& keep) {
  all->erase(std::remove_if(all->begin(), all->end(), [&](const One& one) { return !keep(one); }),
             all->end());
}

void KeepOwn(const JobFilter& filter, std::vector<v1::JobStatus>* jobs) {
  KeepIf(jobs, [&](const v1::JobStatus& job) { return filter.SelectsOwn(job); });
}

// Asks the server for its jobs. The cluster's nodes and queue are about all jobs, so they are asked
// for and shown only together with all.
absl::StatusOr<SeenJobs> AskServer(ControlClient& client, const JobFilter& filter) {
  SeenJobs seen;
  ASSIGN_OR_RETURN(seen.jobs, client.List());
  if (filter.IsEmpty()) {
    ASSIGN_OR_RETURN(seen.nodes, client.Nodes());
  }
  KeepIf(&seen.jobs, [&](const v1::JobStatus& job) { return filter.Selects(job); });
  return seen;
}

// A run's files name no user and no nodes. A run that cannot be read is kept, as its line says so.
void KeepRuns(const JobFilter& filter, std::vector<PastRun>* runs) {
  if (filter.IsEmpty()) return;
  if (filter.NamesUsersOrNodes()) return runs->clear();
  KeepIf(runs, [&](const PastRun& run) {
    const absl::StatusOr<v1::JobStatus> status = StatusOf(run);
    return !status.ok() || filter.Selects(*status);
  });
}

// Shows a server's jobs, or, if none is named and none answers, this machine's.
int ShowAll(const Settings& settings, const JobFilter& filter, bool json) {
  if (AsksForFiles(settings) && filter.NamesUsersOrNodes()) {
    return Fail(kExitUsage,
                "the files of runs name no users and no nodes: leave --me, --user and --node out, "
                "or --log-dir and --run");
  }
  SeenJobs seen;
  absl::Status asked = absl::UnavailableError("");
  const bool named = settings.Get("server").has_value();
  if (!AsksForFiles(settings)) {
    const auto client = ControlClient::Connect(settings);
    asked = client.status();
    if (client.ok()) {
      absl::StatusOr<SeenJobs> all = AskServer(**client, filter);
      asked = all.status();
      if (all.ok()) seen = *std::move(all);
    }
    if (named && !asked.ok()) return Fail(ControlExit(asked), asked.message());
  }
  LocalJobs here;
  if (!named || AsksForFiles(settings)) here = FindLocalJobs(settings);
  // The files of a server's jobs are elsewhere.
  if (asked.ok()) here.runs.clear();
  if (!asked.ok() && here.live.empty() && here.runs.empty()) {
    for (const std::string& line : here.left_out) Notice(line);
    if (!asked.message().empty()) return Fail(ControlExit(asked), asked.message());
    return Fail(1, absl::StrCat("no run's files are in ", settings.GetOr("log-dir", "")));
  }
  KeepOwn(filter, &here.live);
  KeepRuns(filter, &here.runs);
  // Running jobs come before those that have ended.
  seen.jobs.insert(seen.jobs.begin(), here.live.begin(), here.live.end());
  if (json) {
    for (const PastRun& run : here.runs) {
      const absl::StatusOr<v1::JobStatus> status = StatusOf(run);
      if (status.ok()) seen.jobs.push_back(*status);
    }
    return Print(Json(seen.jobs));
  }
  const bool table = asked.ok() || !seen.jobs.empty() || here.runs.empty();
  return PrintRuns(settings, table ? Text(seen.jobs, seen.nodes, false) : "", here.runs,
                   std::move(here.left_out));
}

// Returns the job's state. Fails if its end will never be seen, because the run's launcher was
// killed or is on another machine.
absl::StatusOr<SeenJobs> PollJob(JobSource& source) {
  ASSIGN_OR_RETURN(v1::JobStatus job, source.Get());
  if (source.run().has_value() && !job.has_verdict()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the run of job ", job.name(), " in ", source.log_dir(), " that began at ",
        BeganText(*source.run(), absl::LocalTimeZone()),
        " has no verdict: it still runs on another machine, or its launcher was killed"));
  }
  SeenJobs seen;
  seen.jobs.push_back(std::move(job));
  return seen;
}

int Watch(const Parsed& parsed, const Settings& settings, const JobFilter& filter, bool json) {
  StatusWatch what;
  what.json = json;
  what.one_job = !parsed.rest.empty();
  what.text = [one_job = what.one_job](const SeenJobs& seen) {
    return Text(seen.jobs, seen.nodes, one_job);
  };
  if (what.one_job) {
    absl::StatusOr<JobSource> source = OpenJob(parsed, settings);
    if (!source.ok()) return Fail(ControlExit(source.status()), source.status().message());
    what.poll = [&source] { return PollJob(*source); };
    return WatchStatus(what);
  }
  if (AsksForFiles(settings)) {
    return Fail(
        kExitUsage,
        "--watch without a JOB shows jobs that run, not files; leave --log-dir and --run out");
  }
  const auto client = ControlClient::Connect(settings);
  const bool named = settings.Get("server").has_value();
  if (!client.ok() && named) return Fail(ControlExit(client.status()), client.status().message());
  // The default server need not exist.
  if (named || (client.ok() && (*client)->List().ok())) {
    what.poll = [&] { return AskServer(**client, filter); };
  } else {
    what.poll = [&]() -> absl::StatusOr<SeenJobs> {
      SeenJobs seen{LocalLiveJobs(settings), {}};
      KeepOwn(filter, &seen.jobs);
      return seen;
    };
  }
  return WatchStatus(what);
}

int RunStatus(const Parsed& parsed) {
  const absl::StatusOr<Settings> read = ClientSettings(parsed, StatusFlags());
  if (!read.ok()) return Fail(kExitUsage, read.status().message());
  const Settings& settings = *read;
  const absl::StatusOr<bool> json = AsksForJson(settings.GetOr("output", "plain"));
  if (!json.ok()) return Fail(kExitUsage, json.status().message());
  const auto watch = settings.Switch("watch");
  if (!watch.ok()) return Fail(kExitUsage, watch.status().message());
  const absl::StatusOr<JobFilter> filter =
      ReadJobFilter(parsed, []() -> absl::StatusOr<std::string> {
        ASSIGN_OR_RETURN(const agent::UserEntry user, agent::ThisUser());
        return user.name;
      });
  if (!filter.ok()) return Fail(kExitUsage, filter.status().message());
  if (!filter->IsEmpty() && !parsed.rest.empty()) {
    return Fail(kExitUsage,
                "--me, --user, --state and --node choose among all jobs: leave them out, or the "
                "JOB");
  }
  if (*watch) return Watch(parsed, settings, *filter, *json);
  return parsed.rest.empty() ? ShowAll(settings, *filter, *json) : ShowJob(parsed, settings, *json);
}

}  // namespace

Command StatusCommand() {
  Command command;
  command.name = "status";
  command.summary = "Show jobs and runs, or one job and its nodes.";
  command.positionals = "[JOB]";
  command.max_positionals = 1;
  command.flags = StatusFlags();
  command.run = RunStatus;
  command.description = kJobHelp;
  return command;
}

// cadre why: what a job waits for, and until when; why it ended, with the evidence.

namespace {

// Returns a line for each place at which ranks are now.
std::string WhereTheyAre(JobSource& source) {
  const absl::StatusOr<v1::GetStacksReply> stacks = source.GetStacks({});
  if (stacks.ok()) return absl::StrCat("where the ranks are now:\n", PlacesText(*stacks));
  return absl::StrCat("where the ranks are is not known: ",
                      EscapeControl(std::string(stacks.status().message())), "\n");
}

int RunWhy(const Parsed& parsed) {
  const absl::StatusOr<Settings> read = ClientSettings(parsed, JobSourceFlags());
  if (!read.ok()) return Fail(kExitUsage, read.status().message());
  const Settings& settings = *read;
  absl::StatusOr<JobSource> source = OpenJob(parsed, settings);
  if (!source.ok()) return Fail(ControlExit(source.status()), source.status().message());
  const absl::StatusOr<v1::JobStatus> job = source->Get();
  if (!job.ok()) return Fail(ControlExit(job.status()), job.status().message());
  if (source->run().has_value() && !job->has_verdict() && source->run()->suspended != 0) {
    return Print(absl::StrCat(job->name(), " does not run: ", SuspendedText(*source->run()), "\n"));
  }
  if (source->run().has_value() && !job->has_verdict()) {
    return Fail(1, absl::StrCat("the run of job ", job->name(), " in ", source->log_dir(),
                                " that began at ", BeganText(*source->run(), absl::LocalTimeZone()),
                                " has no verdict: it still runs on another machine, or its "
                                "launcher was killed; 'cadre logs' shows its output"));
  }
  std::string text = job->has_verdict()
                         ? absl::StrCat(job->name(), " ", OutcomeText(job->verdict()))
                         : absl::StrCat(job->name(), " is ", rpc::PhaseName(job->phase()));
  if (!job->has_verdict() && !job->stop_reason().empty()) {
    absl::StrAppend(&text, ": ", job->stop_reason());
  }
  if (!job->waiting_for().empty()) {
    absl::StrAppend(&text, " and waits for ", job->waiting_for());
  } else if (!job->has_verdict()) {
    absl::StrAppend(
        &text,
        job->stall().empty() ? ": " : absl::StrCat(" but makes no progress: ", job->stall(), "; "),
        job->workers_running(), " of ", Count(job->world_size(), "worker"), " run");
    if (job->has_progress()) absl::StrAppend(&text, ", ", ProgressText(job->progress()));
  }
  // If the program reports no steps, its progress is unknown, and the places of its ranks are shown
  // instead.
  const bool shows_nothing = !job->has_verdict() && job->waiting_for().empty() &&
                             job->stall().empty() && !job->has_progress() &&
                             job->workers_running() > 0;
  if (shows_nothing) absl::StrAppend(&text, " and report no steps");
  const bool color = ShowsColor();
  text = EscapeControl(text);
  if (color && job->has_verdict()) text = Headline(job->verdict(), text);
  text = absl::StrCat(text, "\n", QueueText(*job, absl::Now(), absl::LocalTimeZone()),
                      shows_nothing ? WhereTheyAre(*source) : "", AvoidedText(*job));
  if (job->has_verdict()) {
    VerdictStyle style;
    style.log_dir = source->log_dir();
    style.color = color;
    absl::StrAppend(&text, VerdictDetails(job->verdict(), style));
  }
  return Print(text);
}

}  // namespace

Command WhyCommand() {
  Command command;
  command.name = "why";
  command.summary = "Say what a job waits for, or why it ended.";
  command.positionals = "[JOB]";
  command.max_positionals = 1;
  command.flags = JobSourceFlags();
  command.run = RunWhy;
  command.description = kJobHelp;
  return command;
}

// cadre stacks: the current stacks of a job's ranks.

namespace {

std::vector<Flag> StacksFlags() {
  std::vector<Flag> flags = ControlFlags();
  flags.push_back({"rank", "N", "Only this worker, with all threads of all its processes."});
  flags.push_back({"native", "",
                   "With --rank: native stacks too, by eu-stack or gdb, which stop the process "
                   "meanwhile and need the right to trace it."});
  flags.push_back(OutputFlag());
  return flags;
}

int RunStacks(const Parsed& parsed) {
  const absl::StatusOr<Settings> settings = ClientSettings(parsed, StacksFlags());
  if (!settings.ok()) return Fail(kExitUsage, settings.status().message());
  const absl::StatusOr<bool> json = AsksForJson(settings->GetOr("output", "plain"));
  if (!json.ok()) return Fail(kExitUsage, json.status().message());
  v1::GetStacksRequest request;
  if (const auto rank = settings->Get("rank")) {
    const absl::StatusOr<uint32_t> number = ParseCount(rank->value);
    if (!number.ok()) {
      return Fail(kExitUsage,
                  absl::StrCat(rank->origin, ": expected a rank, got '", rank->value, "'"));
    }
    request.mutable_question()->set_one_rank(true);
    request.mutable_question()->set_rank(*number);
  }
  const auto native = settings->Switch("native");
  if (!native.ok()) return Fail(kExitUsage, native.status().message());
  if (*native && !request.question().one_rank()) {
    return Fail(kExitUsage,
                "--native stops the process while it reads its stacks, so it is for one rank: give "
                "--rank N too");
  }
  request.mutable_question()->set_native(*native);
  absl::StatusOr<JobSource> source = OpenJob(parsed, *settings);
  if (!source.ok()) return Fail(ControlExit(source.status()), source.status().message());
  const absl::StatusOr<v1::GetStacksReply> reply = source->GetStacks(request);
  if (!reply.ok()) return Fail(ControlExit(reply.status()), reply.status().message());
  const int printed = Print(*json ? JsonText(*reply) + "\n" : StacksText(*reply));
  if (printed != 0) return printed;
  return reply->silent_size() > 0 ? kExitUnavailable : 0;
}

}  // namespace

Command StacksCommand() {
  Command command;
  command.name = "stacks";
  command.summary = "Show where a job's ranks are now, without stopping them.";
  command.positionals = "[JOB]";
  command.max_positionals = 1;
  command.flags = StacksFlags();
  command.run = RunStacks;
  command.description =
      "JOB is the name of a job, or the id that 'cadre status' shows for one that was submitted. "
      "Ranks at the same place are shown together, the most recent call first, with '>' at lines "
      "of the user's own program. For programs that are not Python it shows their state in the "
      "kernel and in their progress pages. Nodes that do not answer within 2.5 s are named at the "
      "end, and the exit status is then 69.";
  return command;
}

// cadre timeline: where a job's time went.

namespace {

std::vector<Flag> TimelineFlags() {
  std::vector<Flag> flags = JobSourceFlags();
  flags.push_back({"svg", "FILE", "Write a picture there; - is standard output."});
  return flags;
}

int RunTimeline(const Parsed& parsed) {
  const absl::StatusOr<Settings> read = ClientSettings(parsed, TimelineFlags());
  if (!read.ok()) return Fail(kExitUsage, read.status().message());
  const Settings& settings = *read;
  absl::StatusOr<JobSource> source = OpenJob(parsed, settings);
  if (!source.ok()) return Fail(ControlExit(source.status()), source.status().message());
  const absl::StatusOr<v1::JobStatus> job = source->Get();
  if (!job.ok()) return Fail(ControlExit(job.status()), job.status().message());
  v1::Timeline timeline = job->timeline();
  timeline.set_job(job->name());
  const std::string path = settings.GetOr("svg", "");
  if (path.empty()) return Print(TimelineText(timeline));
  if (path == "-") return Print(TimelineSvg(timeline));
  std::ofstream file(path);
  file << TimelineSvg(timeline);
  file.close();
  if (!file) return Fail(kExitInternal, absl::StrCat("cannot write ", path, ": ", strerror(errno)));
  return 0;
}

}  // namespace

Command TimelineCommand() {
  Command command;
  command.name = "timeline";
  command.summary = "Show where a job's time went: generations, recoveries, progress.";
  command.positionals = "[JOB]";
  command.max_positionals = 1;
  command.flags = TimelineFlags();
  command.run = RunTimeline;
  command.description = kJobHelp;
  return command;
}

}  // namespace cadre::launcher
