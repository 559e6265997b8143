#include "agent/workers/filtered_lines.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/own_files.h"

namespace cadre::agent {

bool FilteredLines::File::Open() {
  absl::StatusOr<ScopedFd> file = OpenOwnFile(path, O_WRONLY | O_APPEND | O_CREAT);
  if (file.ok()) fd = *std::move(file);
  return file.ok();
}

size_t FilteredLines::File::Write(absl::string_view bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = write(fd.get(), bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  if (done > 0) within_line = bytes[done - 1] != '\n';
  return done;
}

void FilteredLines::File::Append(size_t skipped, absl::string_view lines) {
  lost += skipped;
  // Open() does not wait for a file system of which it is known that it does not answer.
  if (!fd.ok() && !Open()) {
    lost += lines.size();
    return;
  }
  if (lost > 0) {
    const std::string mark =
        absl::StrCat(within_line ? "\n" : "", "[", lost, " bytes are missing here]\n");
    if (Write(mark) == mark.size()) lost = 0;
  }
  lost += lines.size() - (lost == 0 ? Write(lines) : 0);
}

FilteredLines::~FilteredLines() { Drain(); }

bool FilteredLines::Drain() { return thread_.Drain(kStandsStillAfter); }

bool FilteredLines::Open(const std::string& path) {
  file_ = std::make_shared<File>();
  file_->path = path;
  return thread_.ResultWithin(kStandsStillAfter, [file = file_] { return file->Open(); })
      .value_or(true);
}

void FilteredLines::Add(absl::string_view lines, size_t prefix_bytes) {
  if (!wanted() || file_ == nullptr) return;
  std::string chosen;
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size() - 1) + 1;
    const absl::string_view line = lines.substr(0, end);
    lines.remove_prefix(end);
    const absl::string_view text = line.substr(std::min(prefix_bytes, line.size()));
    const bool matches = std::any_of(texts_.begin(), texts_.end(), [&](const std::string& wanted) {
      return absl::StrContains(text, wanted);
    });
    if (matches) absl::StrAppend(&chosen, line);
  }
  if (chosen.empty()) return;
  const size_t size = chosen.size();
  if (thread_.StandsStill(MonoNow()) || !thread_.HasRoom(size)) {
    left_out_ += size;
    return;
  }
  thread_.Post([file = file_, skipped = std::exchange(left_out_, 0),
                chosen = std::move(chosen)] { file->Append(skipped, chosen); },
               size);
}

}  // namespace cadre::agent
