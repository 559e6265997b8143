#include "launcher/commands/log_follow.h"

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
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/exit_codes.h"
#include "base/text.h"
#include "launcher/attach/control_client.h"
#include "launcher/commands/commands.h"
#include "launcher/display/cluster_text.h"
#include "launcher/display/terminal_line.h"
#include "launcher/display/verdict_text.h"
#include "rendezvous/host/log_reads.h"

namespace cadre::launcher {
namespace {

// A line that does not end is shown in pieces of this.
constexpr size_t kLongestLine = 64 << 10;
constexpr uint64_t kNoEnd = std::numeric_limits<uint64_t>::max();
constexpr int64_t kNoTime = std::numeric_limits<int64_t>::min();

// One stream of one worker of one generation.
struct Cursor {
  // Which file it is; empty: nothing was read yet.
  std::string file;
  uint64_t offset = 0;
  std::string rest;  // what is read, up to `offset`, and not shown yet
  // When what is there was written, and the first of these that is not shown.
  std::vector<LogTime> times;
  size_t next_time = 0;
  // Nothing more will come, or none of it can be read.
  bool ended = false;
  // Why the last try failed.
  absl::Status missed;
};
// Generation, rank, standard error.
using CursorName = std::tuple<uint64_t, uint32_t, bool>;

class Follower {
 public:
  Follower(const LogServer& server, const LogFollow& what) : server_(server), what_(what) {}

  int Run() {
    for (;; absl::SleepFor(kFollowInterval)) {
      const absl::StatusOr<v1::JobStatus> job = server_.get(what_.job);
      if (!job.ok()) {
        if (what_.follow && host::MayReadLater(job.status()) &&
            absl::Now() <= heard_ + kFollowPatience) {
          continue;
        }
        return Fail(ControlExit(job.status()), job.status().message());
      }
      heard_ = absl::Now();
      if (what_.follow && !job->has_verdict()) SayAvoided(*job);
      const absl::Status looked = Look(*job);
      first_look_ = false;
      if (!looked.ok()) return Fail(ControlExit(looked), looked.message());
      if (IsOver(*job)) return End(*job);
      if (write_error_ != 0) return CannotWrite();
    }
  }

 private:
  // New output of all that is followed, since the last look.
  absl::Status Look(const v1::JobStatus& job) {
    if (run_.empty()) run_ = job.run();
    if (run_ != job.run()) {
      return absl::FailedPreconditionError(
          absl::StrCat("job ", job.name(), " has ended, and was submitted again"));
    }
    absl::StatusOr<uint64_t> generation = GenerationOf(job);
    if (!generation.ok()) return generation.status();
    if (*generation != generation_) {
      // First the rest of what is over.
      ReadAll();
      ShowRests();
      cursors_.clear();
      generation_ = *generation;
    }
    absl::Status chosen = Choose(job);
    if (!chosen.ok()) return chosen;
    ReadAll();
    return absl::OkStatus();
  }

  // 0: there is none yet.
  absl::StatusOr<uint64_t> GenerationOf(const v1::JobStatus& job) const {
    const auto& all = job.timeline().generations();
    const uint64_t newest = all.empty() ? 0 : all.rbegin()->generation();
    // One that was chosen by its place among the others stays.
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
    uint32_t first = 0, end = std::min(world_size_, kRanksShown);
    if (what_.rank.has_value()) {
      if (*what_.rank >= world_size_) {
        return absl::FailedPreconditionError(absl::StrCat("job ", job.name(), " has no rank ",
                                                          *what_.rank, "; generation ", generation_,
                                                          " has ", Count(world_size_, "worker")));
      }
      first = *what_.rank;
      end = first + 1;
    } else if (world_size_ > kRanksShown && !said_) {
      said_ = true;
      Fail(0, absl::StrCat("showing ranks 0 to ", kRanksShown - 1, " of ", world_size_,
                           "; --rank N shows another one"));
    }
    for (uint32_t rank = first; rank < end; ++rank) {
      cursors_[{generation_, rank, false}];
      cursors_[{generation_, rank, true}];
    }
    return absl::OkStatus();
  }

  void ReadAll() {
    // Whose turn it is: the one with the oldest line.
    std::set<std::pair<int64_t, CursorName>> due;
    for (auto& [name, cursor] : cursors_) {
      if (cursor.ended) continue;
      const absl::Status begun = Begin(name, &cursor);
      if (begun.ok()) due.emplace(TimeOf(cursor), name);
      NoteMissed(name, &cursor, begun);
    }
    while (!due.empty() && write_error_ == 0) {
      const CursorName name = due.begin()->second;
      due.erase(due.begin());
      Cursor& cursor = cursors_[name];
      const absl::StatusOr<bool> more = ReadOn(name, &cursor);
      NoteMissed(name, &cursor, more.status());
      if (more.ok() && *more) due.emplace(TimeOf(cursor), name);
    }
  }

  void NoteMissed(const CursorName& name, Cursor* cursor, const absl::Status& why) {
    cursor->missed = why;
    if (why.ok() || absl::IsNotFound(why) || (what_.follow && host::MayReadLater(why))) return;
    // A file that cannot be read is no reason to leave out the others.
    cursor->ended = true;
    SayMissed(name, why);
  }

  // When the next of it was written.
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

  // Of what is there already: from where on it is wanted, and when it was written.
  absl::Status Begin(const CursorName& name, Cursor* cursor) {
    if (!cursor->file.empty() || !first_look_) return absl::OkStatus();
    const v1::ReadLogRequest request = RequestFor(name);
    if (what_.tail.has_value() || what_.since.has_value()) {
      const absl::StatusOr<uint64_t> end = EndOf(request);
      if (!end.ok()) return end.status();
      if (server_.times) cursor->times = server_.times(request);
      if (what_.since.has_value() && !cursor->times.empty()) {
        cursor->offset = OffsetSince(cursor->times, *what_.since, *end);
        // A line that was begun earlier is shown whole.
        const absl::StatusOr<uint64_t> line = LinesBefore(request, cursor->offset, 1);
        if (!line.ok()) return line.status();
        if (cursor->offset < *end) cursor->offset = *line;
      } else if (what_.since.has_value() && *end > 0) {
        SayWithoutTimes(name);
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

  // Shows what was written at its time. False: nothing more is there now.
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
          // A process that went on in its place: what it wrote before is not shown again.
          cursor->offset = shown->second;
          continue;
        }
      }
      cursor->ended = reply->ended() && reply->bytes().empty();
      if (reply->bytes().empty()) {
        // What comes later is shown as it comes.
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

  // How long the file is.
  absl::StatusOr<uint64_t> EndOf(v1::ReadLogRequest request) const {
    request.set_tail(1);
    const absl::StatusOr<v1::ReadLogReply> last = server_.read(request);
    if (!last.ok()) return last.status();
    return last->offset() + last->bytes().size();
  }

  // Where the last lines that are wanted begin.
  absl::StatusOr<uint64_t> TailOffset(v1::ReadLogRequest request, uint64_t end) const {
    if (*what_.tail == 0 || end == 0) return end;
    // A newline at the very end ends the last line.
    request.set_offset(end - 1);
    const absl::StatusOr<v1::ReadLogReply> last = server_.read(request);
    if (!last.ok()) return last.status();
    const bool whole = absl::StartsWith(last->bytes(), "\n");
    return LinesBefore(request, end, *what_.tail + (whole ? 1 : 0));
  }

  // Behind the newline that is this many before `end`.
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
          return cursor.second.ended && !cursor.second.missed.ok();
        })) {
      return true;
    }
    if (!job.has_verdict()) return false;
    if (ended_at_ == absl::InfinitePast()) ended_at_ = absl::Now();
    return absl::Now() > ended_at_ + kLastWords ||
           std::all_of(cursors_.begin(), cursors_.end(),
                       [](const auto& cursor) { return cursor.second.ended; });
  }

  int End(const v1::JobStatus& job) {
    ShowRests();
    if (write_error_ != 0) return CannotWrite();
    if (generation_ == 0 && !what_.follow) {
      Fail(0, absl::StrCat("job ", job.name(), " has begun no generation, so there is no output"));
    }
    const bool past = job.has_verdict() || generation_ != job.generation();
    // Before its worker has started there is none.
    const bool due = past || job.workers_running() == job.world_size();
    for (const auto& [name, cursor] : cursors_) {
      if (cursor.ended || cursor.missed.ok() || (absl::IsNotFound(cursor.missed) && !due)) continue;
      SayMissed(name, cursor.missed);
    }
    if (what_.follow && job.has_verdict() && generation_ == job.generation()) {
      return Fail(job.verdict().exit_status(),
                  absl::StrCat("job ", job.name(), " ", OutcomeText(job.verdict())));
    }
    return missed_;
  }

  // Why it begins nowhere, or not where it was to: who follows a job asks nobody else.
  void SayAvoided(const v1::JobStatus& job) {
    for (const std::string& avoided : AvoidedNodes(job)) {
      if (!told_.insert(avoided).second) continue;
      Fail(0, absl::StrCat("job ", job.name(), " ", avoided,
                           job.waiting_for().empty() ? "" : "; it waits for ", job.waiting_for()));
    }
  }

  void SayMissed(const CursorName& name, const absl::Status& why) {
    missed_ = ControlExit(why);
    if (!told_.insert(std::string(why.message())).second) return;
    Fail(0,
         absl::StrCat("cannot show the ", std::get<2>(name) ? "standard error" : "standard output",
                      " of rank ", std::get<1>(name), " in generation ", std::get<0>(name), ": ",
                      why.message()));
  }

  void SayWithoutTimes(const CursorName& name) {
    Fail(0, absl::StrCat("it is not known when rank ", std::get<1>(name), " wrote its ",
                         std::get<2>(name) ? "standard error" : "standard output",
                         ": all of it is shown"));
  }

  int CannotWrite() const {
    return Fail(kExitInternal,
                absl::StrCat("cannot write to standard output or error: ", strerror(write_error_)));
  }

  // Lines that have not ended.
  void ShowRests() {
    for (auto& [name, cursor] : cursors_) Show(name, &cursor, cursor.rest.size());
  }

  // Whole lines that begin in the first `most` bytes.
  void ShowUntil(const CursorName& name, Cursor* cursor, size_t most) {
    const std::string& rest = cursor->rest;
    if (most == 0 || rest.empty()) return;
    const size_t last = rest.find('\n', std::min(most, rest.size()) - 1);
    if (most < rest.size() && last != rest.npos) return Show(name, cursor, last + 1);
    const size_t newline = rest.rfind('\n');
    const size_t end = newline == rest.npos ? 0 : newline + 1;
    Show(name, cursor, rest.size() - end > kLongestLine ? rest.size() : end);
  }

  void Show(const CursorName& name, Cursor* cursor, size_t end) {
    if (end == 0) return;
    std::string text;
    const bool errors = std::get<2>(name), safe = errors ? what_.safe_errors : what_.safe_output;
    const std::string prefix =
        what_.rank.has_value() ? "" : absl::StrCat("[", std::get<1>(name), "]: ");
    for (size_t at = 0; at < end;) {
      const size_t newline = std::min(cursor->rest.find('\n', at), end);
      const std::string line = cursor->rest.substr(at, newline - at);
      absl::StrAppend(&text, prefix, safe ? TerminalLine(line) : line, "\n");
      at = newline + 1;
    }
    cursor->rest.erase(0, end);
    FILE* to = errors ? stderr : stdout;
    if (fwrite(text.data(), 1, text.size(), to) != text.size() || fflush(to) != 0) {
      write_error_ = errno;
    }
  }

  const LogServer& server_;
  const LogFollow& what_;
  std::map<CursorName, Cursor> cursors_;
  // How much of each file was shown.
  std::map<std::string, uint64_t> shown_;
  std::string run_;
  uint64_t generation_ = 0;
  uint32_t world_size_ = 0;
  absl::Time heard_ = absl::Now();
  absl::Time ended_at_ = absl::InfinitePast();
  bool said_ = false;
  bool first_look_ = true;
  // Why something could not be shown, said once for all it is about; and the exit status for it.
  std::set<std::string> told_;
  int missed_ = 0;
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

}  // namespace cadre::launcher
