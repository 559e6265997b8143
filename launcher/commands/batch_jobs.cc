#include "launcher/commands/batch_jobs.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "agent/cluster/users.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/logs.h"
#include "launcher/spec/job_spec.h"
#include "rendezvous/state/policy.h"

namespace cadre::launcher {
namespace {

constexpr size_t kReadBytes = size_t{64} << 10;
// The interval between requests to a server about a job that is waited for.
constexpr absl::Duration kAwaitInterval = absl::Seconds(2);

absl::StatusOr<std::string> ReadAll(int fd, const std::string& name) {
  std::string text;
  for (;;) {
    const size_t used = text.size();
    text.resize(used + kReadBytes);
    const ssize_t got = read(fd, &text[used], kReadBytes);
    text.resize(used + (got > 0 ? got : 0));
    if (got == 0) return text;
    if (got < 0 && errno != EINTR) {
      return absl::ErrnoToStatus(errno, absl::StrCat(name, ": cannot be read"));
    }
    if (text.size() > kMaxBatchJobBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": it has more than ", kMaxBatchJobBytes,
                       " bytes, which is the most that a job may have; keep its data in files"));
    }
  }
}

}  // namespace

absl::StatusOr<std::string> ReadStandardInput() { return ReadAll(STDIN_FILENO, kStandardInput); }

bool IsBatchScript(const std::string& path) {
  // Of a pipe nothing may be read, because it would be missing later.
  struct stat info;
  if (stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return false;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (fd < 0) return false;
  char begin[2] = {};
  const ssize_t got = read(fd, begin, sizeof(begin));
  close(fd);
  return got == sizeof(begin) && begin[0] == '#' && begin[1] == '!';
}

absl::StatusOr<std::string> ReadBatchScript(const std::string& path) {
  // A pipe that nobody writes to is opened at once, and then is at its end.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot be read"));
  const absl::Cleanup close_file = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": it is a directory; expected a batch script"));
  }
  fcntl(fd, F_SETFL, 0);
  return ReadAll(fd, path);
}

absl::StatusOr<Submitter> ThisSubmitter() {
  std::error_code error;
  const std::filesystem::path directory = std::filesystem::current_path(error);
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot find the current directory: ", error.message(), "; change to another one"));
  }
  return Submitter{ReadEnvironment(), directory.string(), HostName(), absl::Now(),
                   absl::LocalTimeZone()};
}

absl::StatusOr<ReadyJob> MakeReady(const BatchSource& source, const std::string& file,
                                   const std::vector<GivenOption>& command_line) {
  ASSIGN_OR_RETURN(const Submitter submitter, ThisSubmitter());
  RETURN_IF_ERROR(CheckBatchScript(source.script, file));
  std::vector<std::string> notices;
  ASSIGN_OR_RETURN(const std::vector<GivenOption> lines,
                   ReadSbatchLines(source.script, file, &notices));
  ReadyJob job;
  ASSIGN_OR_RETURN(
      job.options,
      CombineSbatchOptions(lines, ReadSbatchVariables(submitter.environment), command_line));
  job.options.notices.insert(job.options.notices.begin(), notices.begin(), notices.end());
  ASSIGN_OR_RETURN(job.spec, MakeBatchJob(source, submitter, job.options));
  ASSIGN_OR_RETURN(job.array, ArrayOf(job.options));
  RETURN_IF_ERROR(CheckJob(job.spec));
  return job;
}

absl::Status CheckJob(const v1::JobSpec& spec) {
  RETURN_IF_ERROR(CheckUtf8Fields(spec));
  return state::CheckSpec(spec);
}

namespace {

// Returns what the server, being of an earlier version, has not understood of the job; empty if it
// has understood all.
const char* NotUnderstood(const ReadyJob& ready, const v1::JobStatus& job) {
  if (ready.spec.has_batch() && job.submitted_unix_ms() == 0) return "batch scripts";
  if (ready.array.indices_size() > 0 && job.array() == 0) return "job arrays";
  const v1::QueueOptions& queue = ready.spec.queue();
  const bool waits = queue.held() || queue.begin_unix_ms() != 0 || queue.dependencies_size() > 0;
  if (waits && !job.has_queue()) return "jobs that are held, begin later or depend on others";
  return "";
}

}  // namespace

absl::StatusOr<v1::JobStatus> SubmitJob(ControlClient& client, const ReadyJob& ready) {
  v1::JobSpec spec = ready.spec;
  spec.mutable_logs()->set_dir(
      (std::filesystem::path(spec.working_dir()) / spec.logs().dir()).lexically_normal().string());
  ASSIGN_OR_RETURN(const agent::UserEntry user, agent::ThisUser());
  ASSIGN_OR_RETURN(v1::JobStatus job, client.Submit(spec, user.name, "", ready.array));
  const std::string unknown = NotUnderstood(ready, job);
  if (unknown.empty()) return job;
  // It would run the script once on each node, or the job too early.
  const absl::Status cancelled =
      client.Cancel(job.name(), absl::StrCat("the server knows no ", unknown)).status();
  return absl::FailedPreconditionError(absl::StrCat(
      "the server runs an earlier version of Cadre, which knows no ", unknown, ": upgrade it",
      cancelled.ok() ? "" : absl::StrCat("; and cancel the job: ", cancelled.message())));
}

std::string JobSizeText(const ReadyJob& ready) {
  const v1::JobSpec& spec = ready.spec;
  const v1::NodeRange& nodes = spec.nodes();
  std::string text = nodes.min() == nodes.max() ? "" : absl::StrCat(nodes.min(), " to ");
  absl::StrAppend(&text, Count(nodes.max(), "node"));
  if (spec.workers_per_node().kind() == v1::WorkersPerNode::COUNT) {
    absl::StrAppend(&text, " with ", Count(spec.workers_per_node().count(), "task"),
                    nodes.max() == 1 ? "" : " on each");
  }
  const int elements = ready.array.indices_size();
  return elements == 0 ? text : absl::StrCat(text, " for each of ", Count(elements, "element"));
}

int AwaitEnd(ControlClient& client, const v1::JobStatus& job,
             const std::function<int(const v1::JobStatus&)>& on_end) {
  LogFollow what;
  what.job = LastingName(job);
  what.follow = true;
  what.shows_output = what.shows_errors = false;
  what.most_ranks = 0;
  what.on_end = on_end;
  // A short job is seen to end soon; a long one costs the server little.
  what.wait = [](absl::Duration interval) {
    absl::SleepFor(interval == kFirstFollowInterval ? interval : kAwaitInterval);
  };
  return FollowLogs(LogsOf(client), what);
}

int AwaitAll(ControlClient& client, const v1::JobStatus& first,
             const std::function<int(const v1::JobStatus&)>& on_end) {
  if (first.array() == 0) return AwaitEnd(client, first, on_end);
  const absl::StatusOr<std::vector<v1::JobStatus>> jobs = client.List();
  if (!jobs.ok()) return Fail(ControlExit(jobs.status()), jobs.status().message());
  int status = 0;
  for (const v1::JobStatus& job : *jobs) {
    const bool element = job.array() == first.array() && job.step_of() == 0;
    if (element) status = std::max(status, AwaitEnd(client, job, on_end));
  }
  return status;
}

}  // namespace cadre::launcher
