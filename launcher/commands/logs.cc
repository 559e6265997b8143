// cadre logs: the output of a job's workers, wherever they ran.
#include "launcher/commands/logs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/civil_time.h"
#include "absl/time/clock.h"
#include "base/exit_codes.h"
#include "base/log_paths.h"
#include "base/text.h"
#include "launcher/attach/control_client.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/job_source.h"
#include "launcher/display/output_format.h"
#include "launcher/display/status_text.h"
#include "launcher/display/verdict_text.h"
#include "launcher/spec/scalars.h"
#include "launcher/spec/text_file.h"
#include "rendezvous/host/agent_requests.h"

namespace cadre::launcher {
namespace {

std::vector<Flag> Flags() {
  std::vector<Flag> flags = JobSourceFlags();
  flags.push_back(
      {"rank", "N", "Only this rank's output, without the prefix [the first 64 ranks]."});
  flags.push_back(
      {"generation", "N",
       "Only this generation's output; 'previous' is the one before the newest [the newest]."});
  flags.push_back(
      {"tail", "N", "Only the last N lines of each stream of each rank of the output so far."});
  flags.push_back({"since", "TIME",
                   "Only what was written since then: 5m (ago), 12:30, 2026-11-29T12:30. For "
                   "output on this machine or in --log-dir."});
  flags.push_back(
      {"follow", "", "Show new output until the job ends; exits with the job's exit status."});
  flags.push_back({"raw", "",
                   "Write control characters to a terminal unchanged, as to a pipe; otherwise they "
                   "are shown as \\xNN, except colours."});
  return flags;
}

int Run(const Parsed& parsed) {
  const absl::StatusOr<Settings> settings = ClientSettings(parsed, Flags());
  if (!settings.ok()) return Fail(kExitUsage, settings.status().message());
  LogFollow what;
  const auto follow = settings->Switch("follow");
  if (!follow.ok()) return Fail(kExitUsage, follow.status().message());
  what.follow = *follow;
  const auto raw = settings->Switch("raw");
  if (!raw.ok()) return Fail(kExitUsage, raw.status().message());
  if (!*raw) ProtectTerminals(&what);
  if (const auto rank = settings->Get("rank")) {
    const absl::StatusOr<uint32_t> number = ParseCount(rank->value);
    if (!number.ok()) {
      return Fail(kExitUsage,
                  absl::StrCat(rank->origin, ": expected a rank, got '", rank->value, "'"));
    }
    what.rank = *number;
  }
  if (const auto generation = settings->Get("generation")) {
    uint64_t number = 0;
    what.previous = generation->value == "previous";
    if (!what.previous && (!absl::SimpleAtoi(generation->value, &number) || number == 0)) {
      return Fail(kExitUsage, absl::StrCat(generation->origin,
                                           ": expected a generation's number or 'previous', ",
                                           "got '", generation->value, "'"));
    }
    if (!what.previous) what.generation = number;
  }
  if (const auto tail = settings->Get("tail")) {
    uint64_t lines = 0;
    if (!absl::SimpleAtoi(tail->value, &lines)) {
      return Fail(kExitUsage, absl::StrCat(tail->origin, ": expected a number of lines, got '",
                                           tail->value, "'"));
    }
    what.tail = lines;
  }
  if (const auto since = settings->Get("since")) {
    const absl::StatusOr<absl::Time> time =
        ParseSince(since->value, absl::Now(), absl::LocalTimeZone());
    if (!time.ok()) {
      return Fail(kExitUsage, absl::StrCat(since->origin, ": ", time.status().message()));
    }
    what.since = *time;
  }
  absl::StatusOr<JobSource> source = OpenJob(parsed, *settings);
  if (!source.ok()) return Fail(ControlExit(source.status()), source.status().message());
  what.job = source->job();
  LogServer server = {[&](const std::string&) { return source->Get(); },
                      [&](const v1::ReadLogRequest& request) { return source->ReadLog(request); }};
  if (source->HasFiles()) {
    server.times = [&](const v1::ReadLogRequest& request) { return source->LogTimes(request); };
  } else if (what.since.has_value()) {
    return Fail(kExitUsage,
                "--since: a server does not know when output was written; leave --since out, or "
                "name the directory of the job's files with --log-dir DIR");
  }
  return FollowLogs(server, what);
}

}  // namespace

Command LogsCommand() {
  Command command;
  command.name = "logs";
  command.summary = "Show what a job's workers wrote, by rank.";
  command.positionals = "[JOB]";
  command.max_positionals = 1;
  command.flags = Flags();
  command.run = Run;
  command.description = kJobHelp;
  return command;
}

namespace {

// An unfinished line is shown in pieces of this size.
constexpr size_t kLongestLine = 64 << 10;
// Of more files the server is not asked so often.
constexpr size_t kFewFiles = 32;
constexpr uint64_t kNoEnd = std::numeric_limits<uint64_t>::max();
constexpr int64_t kNoTime = std::numeric_limits<int64_t>::min();

// One stream of one worker in one generation.
struct Cursor {
  // The file that is read; empty: nothing was read yet.
  std::string file;
  uint64_t offset = 0;
  std::string rest;  // read, up to `offset`, but not shown yet
  // When the content of the file was written, and the index of the first time whose content is not
  // shown yet.
  std::vector<LogTime> times;
  size_t next_time = 0;
  // The file is complete, or cannot be read.
  bool ended = false;
  // Why the last attempt failed.
  absl::Status read_error;
};
// A generation, a rank, and whether it is standard error.
using CursorName = std::tuple<uint64_t, uint32_t, bool>;

class Follower {
 public:
  Follower(const LogServer& server, const LogFollow& what) : server_(server), what_(what) {}

  int Run() {
    for (;; Wait()) {
      const absl::StatusOr<v1::JobStatus> job = server_.get(what_.job);
      if (!job.ok()) {
        if (what_.follow && host::MayReadLater(job.status()) &&
            absl::Now() <= answered_at_ + kFollowTimeout) {
          continue;
        }
        return Fail(ControlExit(job.status()), job.status().message());
      }
      answered_at_ = absl::Now();
      if (what_.on_status) what_.on_status(*job);
      if (what_.follow && !job->has_verdict()) PrintAvoidedNodes(*job);
      const absl::Status shown = ShowNew(*job);
      first_round_ = false;
      if (!shown.ok()) return Fail(ControlExit(shown), shown.message());
      if (IsOver(*job)) return End(*job);
      if (write_error_ != 0) return CannotWrite();
    }
  }

 private:
  void Wait() const {
    const bool soon = absl::Now() < began_at_ + kFirstFollowTime && cursors_.size() <= kFewFiles;
    const absl::Duration interval = soon ? kFirstFollowInterval : kFollowInterval;
    if (what_.wait) return what_.wait(interval);
    absl::SleepFor(interval);
  }

  // Shows new output of everything that is followed.
  absl::Status ShowNew(const v1::JobStatus& job) {
    if (run_.empty()) run_ = job.run();
    if (run_ != job.run()) {
      return absl::FailedPreconditionError(
          absl::StrCat("job ", job.name(), " has ended, and was submitted again"));
    }
    absl::StatusOr<uint64_t> generation = GenerationOf(job);
    if (!generation.ok()) return generation.status();
    if (*generation != generation_) {
      // First the rest of the generation that is over.
      ReadAll();
      ShowIncompleteLines();
      cursors_.clear();
      generation_ = *generation;
    }
    absl::Status chosen = Choose(job);
    if (!chosen.ok()) return chosen;
    ReadAll();
    return absl::OkStatus();
  }

  // 0: there is no generation yet.
  absl::StatusOr<uint64_t> GenerationOf(const v1::JobStatus& job) const {
    const auto& all = job.timeline().generations();
    const uint64_t newest = all.empty() ? 0 : all.rbegin()->generation();
    // A generation that was chosen as the previous one is kept.
    if (what_.previous && generation_ != 0) return generation_;
    if (!what_.previous && !what_.generation.has_value()) return newest;
    if (what_.previous && all.size() < 2) {
      return absl::FailedPreconditionError(absl::StrCat(
          "job ", job.name(), " has had ", Count(all.size(), "generation"), " so far"));
    }
    const uint64_t wanted = what_.previous ? (all.rbegin() + 1)->generation() : *what_.generation;
    for (const v1::GenerationTimeline& one : all) {
      if (one.generation() == wanted) return wanted;
    }
    return absl::FailedPreconditionError(
        all.empty() ? absl::StrCat("job ", job.name(), " has had no generation so far")
                    : absl::StrCat("job ", job.name(), " has no generation ", wanted, "; it has ",
                                   all.begin()->generation(), " to ", newest, " so far"));
  }

  absl::Status Choose(const v1::JobStatus& job) {
    for (const v1::GenerationTimeline& one : job.timeline().generations()) {
      if (one.generation() == generation_) world_size_ = one.world_size();
    }
    if (generation_ == 0) return absl::OkStatus();
    uint32_t first = 0, end = std::min(world_size_, what_.most_ranks);
    if (what_.rank.has_value()) {
      if (*what_.rank >= world_size_) {
        return absl::FailedPreconditionError(absl::StrCat("job ", job.name(), " has no rank ",
                                                          *what_.rank, "; generation ", generation_,
                                                          " has ", Count(world_size_, "worker")));
      }
      first = *what_.rank;
      end = first + 1;
    } else if (world_size_ > end && end > 0 && !printed_ranks_) {
      printed_ranks_ = true;
      Notice(absl::StrCat("showing ranks 0 to ", end - 1, " of ", world_size_,
                          "; --rank N shows another one"));
    }
    for (uint32_t rank = first; rank < end; ++rank) {
      if (what_.shows_output) cursors_[{generation_, rank, false}];
      if (what_.shows_errors) cursors_[{generation_, rank, true}];
    }
    return absl::OkStatus();
  }

  void ReadAll() {
    // The cursors with output, by its time: the oldest output comes next.
    std::set<std::pair<int64_t, CursorName>> due;
    for (auto& [name, cursor] : cursors_) {
      if (cursor.ended) continue;
      const absl::Status begun = Begin(name, &cursor);
      if (begun.ok()) due.emplace(TimeOf(cursor), name);
      NoteReadError(name, &cursor, begun);
    }
    while (!due.empty() && write_error_ == 0) {
      const CursorName name = due.begin()->second;
      due.erase(due.begin());
      Cursor& cursor = cursors_[name];
      const absl::StatusOr<bool> more = ReadOn(name, &cursor);
      NoteReadError(name, &cursor, more.status());
      if (more.ok() && *more) due.emplace(TimeOf(cursor), name);
    }
  }

  void NoteReadError(const CursorName& name, Cursor* cursor, const absl::Status& why) {
    cursor->read_error = why;
    if (why.ok() || absl::IsNotFound(why) || (what_.follow && host::MayReadLater(why))) return;
    // The other files are shown even if one cannot be read.
    cursor->ended = true;
    PrintCannotShow(name, why);
  }

  // The time at which the next output of this cursor was written.
  static int64_t TimeOf(const Cursor& cursor) {
    return cursor.next_time == 0 ? kNoTime : cursor.times[cursor.next_time - 1].unix_ms;
  }

  v1::ReadLogRequest RequestFor(const CursorName& name) const {
    v1::ReadLogRequest request;
    request.set_job(what_.job);
    request.set_run(run_);
    request.set_generation(std::get<0>(name));
    request.set_rank(std::get<1>(name));
    request.set_standard_error(std::get<2>(name));
    return request;
  }

  // Finds where the existing content is to be shown from, and when it was written.
  absl::Status Begin(const CursorName& name, Cursor* cursor) {
    if (!cursor->file.empty() || !first_round_) return absl::OkStatus();
    const v1::ReadLogRequest request = RequestFor(name);
    if (what_.tail.has_value() || what_.since.has_value()) {
      const absl::StatusOr<uint64_t> end = EndOf(request);
      if (!end.ok()) return end.status();
      if (server_.times) cursor->times = server_.times(request);
      if (what_.since.has_value() && !cursor->times.empty()) {
        cursor->offset = OffsetSince(cursor->times, *what_.since, *end);
        // A line that began before that time is shown whole.
        const absl::StatusOr<uint64_t> line = LinesBefore(request, cursor->offset, 1);
        if (!line.ok()) return line.status();
        if (cursor->offset < *end) cursor->offset = *line;
      } else if (what_.since.has_value() && *end > 0) {
        PrintTimesUnknown(name);
      }
      if (what_.tail.has_value()) {
        const absl::StatusOr<uint64_t> from = TailOffset(request, *end);
        if (!from.ok()) return from.status();
        cursor->offset = std::max(cursor->offset, *from);
      }
    } else if (server_.times) {
      cursor->times = server_.times(request);
    }
    while (cursor->next_time < cursor->times.size() &&
           cursor->times[cursor->next_time].offset <= cursor->offset) {
      ++cursor->next_time;
    }
    return absl::OkStatus();
  }

  // Shows what was written at the cursor's next time. False: there is no more content now.
  absl::StatusOr<bool> ReadOn(const CursorName& name, Cursor* cursor) {
    v1::ReadLogRequest request = RequestFor(name);
    const bool last = cursor->next_time >= cursor->times.size();
    const uint64_t end = last ? kNoEnd : cursor->times[cursor->next_time].offset;
    while (write_error_ == 0) {
      const uint64_t begin = cursor->offset - cursor->rest.size();
      if (end != kNoEnd) ShowUntil(name, cursor, end > begin ? end - begin : 0);
      if (cursor->offset - cursor->rest.size() >= end) {
        ++cursor->next_time;
        return true;
      }
      request.set_offset(cursor->offset);
      const absl::StatusOr<v1::ReadLogReply> reply = server_.read(request);
      if (!reply.ok()) return reply.status();
      if (cursor->file.empty()) {
        cursor->file = reply->file();
        const auto shown = shown_.find(cursor->file);
        if (shown != shown_.end()) {
          // The process continued in this generation: its earlier output is not shown again.
          cursor->offset = shown->second;
          continue;
        }
      }
      cursor->ended = reply->ended() && reply->bytes().empty();
      if (reply->bytes().empty()) {
        // Later output is shown as it comes.
        cursor->times.clear();
        cursor->next_time = 0;
        return false;
      }
      cursor->offset += reply->bytes().size();
      shown_[cursor->file] = cursor->offset;
      cursor->rest += reply->bytes();
      if (end == kNoEnd) ShowUntil(name, cursor, cursor->rest.size());
    }
    return false;
  }

  // The size of the file.
  absl::StatusOr<uint64_t> EndOf(v1::ReadLogRequest request) const {
    request.set_tail(1);
    const absl::StatusOr<v1::ReadLogReply> last = server_.read(request);
    if (!last.ok()) return last.status();
    return last->offset() + last->bytes().size();
  }

  // The offset at which the last `tail` lines begin.
  absl::StatusOr<uint64_t> TailOffset(v1::ReadLogRequest request, uint64_t end) const {
    if (*what_.tail == 0 || end == 0) return end;
    // A newline at the very end belongs to the last line.
    request.set_offset(end - 1);
    const absl::StatusOr<v1::ReadLogReply> last = server_.read(request);
    if (!last.ok()) return last.status();
    const bool whole = absl::StartsWith(last->bytes(), "\n");
    return LinesBefore(request, end, *what_.tail + (whole ? 1 : 0));
  }

  // The offset after the newline that has this many newlines between it and `end`.
  absl::StatusOr<uint64_t> LinesBefore(v1::ReadLogRequest request, uint64_t end,
                                       uint64_t newlines) const {
    for (uint64_t begin = end; begin > 0;) {
      const uint64_t block = std::min<uint64_t>(begin, host::kLogChunkBytes);
      begin -= block;
      request.set_offset(begin);
      const absl::StatusOr<v1::ReadLogReply> read = server_.read(request);
      if (!read.ok()) return read.status();
      for (size_t at = std::min<size_t>(block, read->bytes().size()); at > 0; --at) {
        if (read->bytes()[at - 1] == '\n' && --newlines == 0) return begin + at;
      }
    }
    return 0;
  }

  bool IsOver(const v1::JobStatus& job) {
    const bool replaced = generation_ != 0 && !job.timeline().generations().empty() &&
                          job.timeline().generations().rbegin()->generation() != generation_;
    if (!what_.follow || replaced) return true;
    if (!cursors_.empty() && std::all_of(cursors_.begin(), cursors_.end(), [](const auto& cursor) {
          return cursor.second.ended && !cursor.second.read_error.ok();
        })) {
      return true;
    }
    if (!job.has_verdict()) return false;
    if (ended_at_ == absl::InfinitePast()) ended_at_ = absl::Now();
    return absl::Now() > ended_at_ + kLastLinesTimeout ||
           std::all_of(cursors_.begin(), cursors_.end(),
                       [](const auto& cursor) { return cursor.second.ended; });
  }

  int End(const v1::JobStatus& job) {
    ShowIncompleteLines();
    if (write_error_ != 0) return CannotWrite();
    if (generation_ == 0 && !what_.follow) {
      Notice(absl::StrCat("job ", job.name(), " has begun no generation, so there is no output"));
    }
    const bool past = job.has_verdict() || generation_ != job.generation();
    // Before its worker has started a file is not expected.
    const bool due = past || job.workers_running() == job.world_size();
    for (const auto& [name, cursor] : cursors_) {
      if (cursor.ended || cursor.read_error.ok() || (absl::IsNotFound(cursor.read_error) && !due))
        continue;
      PrintCannotShow(name, cursor.read_error);
    }
    const auto& all = job.timeline().generations();
    const bool newest = generation_ == (all.empty() ? 0 : all.rbegin()->generation());
    if (what_.follow && job.has_verdict() && newest) {
      if (what_.on_end) return what_.on_end(job);
      return Fail(job.verdict().exit_status(),
                  absl::StrCat("job ", job.name(), " ", OutcomeText(job.verdict())));
    }
    return exit_status_;
  }

  // Prints why the job does not start, or not on certain nodes: a user who follows a job asks no
  // other command.
  void PrintAvoidedNodes(const v1::JobStatus& job) {
    for (const std::string& avoided : AvoidedNodes(job)) {
      if (!printed_.insert(avoided).second) continue;
      Notice(absl::StrCat("job ", job.name(), " ", avoided,
                          job.waiting_for().empty() ? "" : "; it waits for ", job.waiting_for()));
    }
  }

  void PrintCannotShow(const CursorName& name, const absl::Status& why) {
    exit_status_ = ControlExit(why);
    if (!printed_.insert(std::string(why.message())).second) return;
    Notice(absl::StrCat(
        "cannot show the ", std::get<2>(name) ? "standard error" : "standard output", " of rank ",
        std::get<1>(name), " in generation ", std::get<0>(name), ": ", why.message()));
  }

  void PrintTimesUnknown(const CursorName& name) {
    Notice(absl::StrCat("it is not known when rank ", std::get<1>(name), " wrote its ",
                        std::get<2>(name) ? "standard error" : "standard output",
                        ": all of it is shown"));
  }

  int CannotWrite() const {
    return Fail(kExitInternal,
                absl::StrCat("cannot write to standard output or error: ", strerror(write_error_)));
  }

  // Shows unfinished lines.
  void ShowIncompleteLines() {
    for (auto& [name, cursor] : cursors_) Show(name, &cursor, cursor.rest.size());
  }

  // Shows whole lines that begin within the first `most` bytes.
  void ShowUntil(const CursorName& name, Cursor* cursor, size_t most) {
    const std::string& rest = cursor->rest;
    if (most == 0 || rest.empty()) return;
    if (what_.unbuffered) return Show(name, cursor, rest.size());
    const size_t last = rest.find('\n', std::min(most, rest.size()) - 1);
    if (most < rest.size() && last != rest.npos) return Show(name, cursor, last + 1);
    const size_t newline = rest.rfind('\n');
    const size_t end = newline == rest.npos ? 0 : newline + 1;
    Show(name, cursor, rest.size() - end > kLongestLine ? rest.size() : end);
  }

  void Show(const CursorName& name, Cursor* cursor, size_t end) {
    if (end == 0) return;
    std::string text = cursor->rest.substr(0, end);
    if (!what_.exact) text = Lines(std::get<1>(name), std::get<2>(name), text);
    cursor->rest.erase(0, end);
    FILE* to = std::get<2>(name) ? stderr : stdout;
    if (fwrite(text.data(), 1, text.size(), to) != text.size() || fflush(to) != 0) {
      write_error_ = errno;
    }
  }

  // The text in lines as they are shown. The last one gets a newline if it has none.
  std::string Lines(uint32_t rank, bool errors, const std::string& text) const {
    const bool safe = errors ? what_.safe_errors : what_.safe_output;
    const std::string prefix = what_.prefix             ? what_.prefix(rank)
                               : what_.rank.has_value() ? ""
                                                        : absl::StrCat("[", rank, "]: ");
    std::string lines;
    for (size_t at = 0; at < text.size();) {
      const size_t newline = std::min(text.find('\n', at), text.size());
      const std::string line = text.substr(at, newline - at);
      absl::StrAppend(&lines, prefix, safe ? TerminalLine(line) : line, "\n");
      at = newline + 1;
    }
    return lines;
  }

  const LogServer& server_;
  const LogFollow& what_;
  std::map<CursorName, Cursor> cursors_;
  // How much of each file was shown.
  std::map<std::string, uint64_t> shown_;
  std::string run_;
  uint64_t generation_ = 0;
  uint32_t world_size_ = 0;
  const absl::Time began_at_ = absl::Now();
  absl::Time answered_at_ = began_at_;
  absl::Time ended_at_ = absl::InfinitePast();
  bool printed_ranks_ = false;
  bool first_round_ = true;
  // Reasons why something could not be shown, each printed once; and the exit status for that.
  std::set<std::string> printed_;
  int exit_status_ = 0;
  int write_error_ = 0;
};

}  // namespace

LogServer LogsOf(ControlClient& client) {
  return {[&client](const std::string& job) { return client.Get(job); },
          [&client](const v1::ReadLogRequest& request) { return client.ReadLog(request); }};
}

void ProtectTerminals(LogFollow* what) {
  what->safe_output = isatty(STDOUT_FILENO) == 1;
  what->safe_errors = isatty(STDERR_FILENO) == 1;
}

int FollowLogs(const LogServer& server, const LogFollow& what) {
  return Follower(server, what).Run();
}

namespace {

// A file of many months is smaller than this.
constexpr size_t kMaxTimesBytes = size_t{1} << 30;

}  // namespace

std::vector<LogTime> ReadLogTimes(const std::string& log_path) {
  std::vector<LogTime> times;
  const absl::StatusOr<std::string> text = ReadTextFile(LogTimesPath(log_path), kMaxTimesBytes);
  if (!text.ok()) return times;
  for (const absl::string_view line : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> words = absl::StrSplit(line, ' ');
    LogTime time;
    if (!absl::SimpleAtoi(words.first, &time.unix_ms) ||
        !absl::SimpleAtoi(words.second, &time.offset)) {
      continue;  // the line was cut off by a full disk
    }
    if (!times.empty()) {
      if (time.offset <= times.back().offset) continue;
      // Times must not go back if the clock was set back.
      time.unix_ms = std::max(time.unix_ms, times.back().unix_ms);
    }
    times.push_back(time);
  }
  return times;
}

uint64_t OffsetSince(const std::vector<LogTime>& times, absl::Time since, uint64_t end) {
  for (const LogTime& time : times) {
    if (time.unix_ms + kLogTimeStepMs > absl::ToUnixMillis(since))
      return std::min(end, time.offset);
  }
  return end;
}

absl::StatusOr<absl::Time> ParseSince(absl::string_view text, absl::Time now, absl::TimeZone zone) {
  const absl::StatusOr<absl::Duration> ago = ParseDuration(text);
  if (ago.ok()) return now - *ago;
  absl::Time time;
  std::string ignored;
  const absl::CivilDay today = absl::ToCivilDay(now, zone);
  for (const char* const form : {"%H:%M", "%H:%M:%E*S"}) {
    const auto on = [&](absl::CivilDay day) {
      const std::string whole = absl::StrCat(absl::FormatCivilTime(day), " ", text);
      return absl::ParseTime(absl::StrCat("%Y-%m-%d ", form), whole, zone, &time, &ignored);
    };
    if (on(today) && (time <= now || on(today - 1))) return time;
  }
  for (const char* const day : {"%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%E*S",
                                "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%E*S"}) {
    for (const char* const own : {"", "%Ez"}) {
      if (absl::ParseTime(absl::StrCat(day, own), text, zone, &time, &ignored)) return time;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("expected how long ago, as 5m or 1h30m, a time of day, as 12:30, or a date, as "
                   "2026-11-29 or 2026-11-29T12:30:15, got '",
                   text.substr(0, 64), "'"));
}

}  // namespace cadre::launcher
