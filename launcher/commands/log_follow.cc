#include "launcher/commands/log_follow.h"

#include <stdio.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "launcher/commands/commands.h"
#include "launcher/display/escape.h"
#include "launcher/display/status_block.h"

namespace cadre {
namespace {

// A line that does not end is shown in pieces of this.
constexpr size_t kLongestLine = 64 << 10;

bool IsPassing(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsResourceExhausted(status);
}

// One stream of one worker of one generation.
struct Cursor {
  uint64_t offset = 0;
  std::string rest;  // a line that has not ended
};
// Generation, rank, standard error.
using CursorName = std::tuple<uint64_t, uint32_t, bool>;

class Follower {
 public:
  Follower(ControlClient& client, const LogFollow& what) : client_(client), what_(what) {}

  int Run() {
    for (;; absl::SleepFor(kFollowInterval)) {
      const absl::StatusOr<v1::JobStatus> job = client_.Get(what_.job);
      absl::Status status = job.status();
      if (job.ok()) status = Look(*job);
      if (status.ok()) {
        heard_ = absl::Now();
        const bool ended = job->has_verdict();
        if (!what_.follow || ended) {
          for (auto& [name, cursor] : cursors_) Show(name, &cursor, true);
        }
        if (!what_.follow) return written_ ? 0 : kExitInternal;
        if (ended) return End(*job);
      } else if (!what_.follow || !IsPassing(status) || absl::Now() > heard_ + kFollowPatience) {
        return Fail(ControlExit(status), status.message());
      }
      if (!written_) return kExitInternal;
    }
  }

 private:
  int End(const v1::JobStatus& job) {
    Fail(0, absl::StrCat("job ", job.name(), " ", PhaseName(job.phase()), ": ",
                         job.verdict().message()));
    return job.verdict().exit_status();
  }

  // What has come since the last look, of all that is followed.
  absl::Status Look(const v1::JobStatus& job) {
    if (job.generation() != generation_) {
      // First the rest of what is over.
      absl::Status old = ReadAll();
      if (!old.ok()) return old;
      for (auto& [name, cursor] : cursors_) Show(name, &cursor, true);
      cursors_.clear();
      generation_ = job.generation();
    }
    Choose(job);
    return ReadAll();
  }

  void Choose(const v1::JobStatus& job) {
    if (job.world_size() == 0) return;
    world_size_ = job.world_size();
    uint32_t first = 0, end = std::min(job.world_size(), kRanksShown);
    if (what_.rank.has_value()) {
      first = *what_.rank;
      end = first + 1;
    } else if (job.world_size() > kRanksShown && !said_) {
      said_ = true;
      Fail(0, absl::StrCat("showing ranks 0 to ", kRanksShown - 1, " of ", job.world_size(),
                           "; --rank N shows another one"));
    }
    for (uint32_t rank = first; rank < end; ++rank) {
      cursors_[{generation_, rank, false}];
      cursors_[{generation_, rank, true}];
    }
  }

  absl::Status ReadAll() {
    for (auto& [name, cursor] : cursors_) {
      absl::Status status = ReadOne(name, &cursor);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status ReadOne(const CursorName& name, Cursor* cursor) {
    v1::ReadLogRequest request;
    request.set_job(what_.job);
    request.set_generation(std::get<0>(name));
    request.set_rank(std::get<1>(name));
    request.set_standard_error(std::get<2>(name));
    for (;;) {
      request.set_offset(cursor->offset);
      absl::StatusOr<std::string> bytes = client_.ReadLog(request);
      // It has written nothing yet; but a rank that the job does not have is an error.
      if (absl::IsNotFound(bytes.status()) && KnowsRank(name)) return absl::OkStatus();
      if (!bytes.ok()) return bytes.status();
      if (bytes->empty()) return absl::OkStatus();
      cursor->offset += bytes->size();
      cursor->rest += *bytes;
      Show(name, cursor, false);
    }
  }

  bool KnowsRank(const CursorName& name) const {
    return std::get<0>(name) != generation_ || std::get<1>(name) < world_size_;
  }

  // Whole lines, or with `all` what is left too.
  void Show(const CursorName& name, Cursor* cursor, bool all) {
    size_t end = cursor->rest.rfind('\n');
    end = end == std::string::npos ? 0 : end + 1;
    if (all || cursor->rest.size() - end > kLongestLine) end = cursor->rest.size();
    if (end == 0) return;
    std::string text;
    const std::string prefix =
        what_.rank.has_value() ? "" : absl::StrCat("[", std::get<1>(name), "]: ");
    for (size_t at = 0; at < end;) {
      const size_t newline = std::min(cursor->rest.find('\n', at), end);
      absl::StrAppend(&text, prefix, cursor->rest.substr(at, newline - at), "\n");
      at = newline + 1;
    }
    cursor->rest.erase(0, end);
    FILE* to = std::get<2>(name) ? stderr : stdout;
    written_ = fwrite(text.data(), 1, text.size(), to) == text.size() && fflush(to) == 0;
  }

  ControlClient& client_;
  const LogFollow& what_;
  std::map<CursorName, Cursor> cursors_;
  uint64_t generation_ = 0;
  uint32_t world_size_ = 0;
  absl::Time heard_ = absl::Now();
  bool said_ = false;
  bool written_ = true;
};

}  // namespace

int FollowLogs(ControlClient& client, const LogFollow& what) {
  return Follower(client, what).Run();
}

}  // namespace cadre
