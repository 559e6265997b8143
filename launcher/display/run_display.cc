#include "launcher/display/run_display.h"

#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "agent/workers/worker_outputs.h"
#include "base/clock.h"
#include "base/text.h"
#include "launcher/display/output_format.h"
#include "launcher/display/timeline_text.h"
#include "launcher/display/verdict_text.h"

namespace cadre::launcher {
namespace {

struct TerminalSize {
  size_t columns = 80;
  size_t rows = 24;
};

// The terminal's size is read each time, because the user may have resized the window.
TerminalSize SizeNow() {
  TerminalSize size;
  winsize now = {};
  const bool told = ioctl(STDERR_FILENO, TIOCGWINSZ, &now) == 0;
  if (told && now.ws_row > 0) size.rows = now.ws_row;
  size_t columns = 0;
  const char* text = getenv("COLUMNS");
  if (told && now.ws_col > 0) {
    size.columns = now.ws_col;
  } else if (text != nullptr && absl::SimpleAtoi(text, &columns) && columns > 0) {
    size.columns = columns;
  }
  size.columns = std::max<size_t>(size.columns, 20);
  return size;
}

bool IsPipe(int fd) {
  struct stat found;
  return fstat(fd, &found) == 0 && S_ISFIFO(found.st_mode);
}

bool IsOneDestination() {
  struct stat out, error;
  return fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &error) == 0 &&
         out.st_dev == error.st_dev && out.st_ino == error.st_ino;
}

}  // namespace

RunDisplayOptions DetectTerminal(bool no_progress) {
  RunDisplayOptions options;
  const char* term = getenv("TERM");
  const char* no_color = getenv("NO_COLOR");
  const bool able = isatty(STDERR_FILENO) && term != nullptr && absl::string_view(term) != "dumb";
  // The reader of a pipe (`| tee`) may write to this terminal too, into the middle of the block.
  options.live = able && !no_progress && !IsPipe(STDOUT_FILENO);
  options.in_foreground = [] {
    const pid_t owner = tcgetpgrp(STDERR_FILENO);
    // The terminal does not belong to this session.
    return owner < 0 || owner == getpgrp();
  };
  options.output_shares_terminal = isatty(STDOUT_FILENO);
  options.one_destination = IsOneDestination();
  options.color = able && (no_color == nullptr || no_color[0] == '\0');
  return options;
}

RunDisplay::RunDisplay(RunDisplayOptions options, OutputWriter& writer)
    : options_(std::move(options)), writer_(writer) {}

bool RunDisplay::DrawsBlock() {
  if (!options_.live) return false;
  if (options_.in_foreground()) return true;
  // The block drawn before is above the shell's prompt.
  drawn_.clear();
  block_.clear();
  return false;
}

std::string RunDisplay::Erase() {
  if (drawn_.empty()) return "";
  // Most terminals rewrap lines when they become narrower.
  const size_t columns = SizeNow().columns;
  size_t rows = 0;
  for (const size_t line : drawn_) rows += std::max<size_t>((line + columns - 1) / columns, 1);
  std::string codes = "\r";
  if (rows > 1) absl::StrAppend(&codes, "\x1b[", rows - 1, "A");
  drawn_.clear();
  return codes + "\x1b[J";
}

std::string RunDisplay::Draw() {
  drawn_.clear();
  for (const std::string& line : block_) drawn_.push_back(Columns(line));
  return absl::StrJoin(block_, "\n");
}

void RunDisplay::EndUnfinishedLine(bool to_stderr) {
  for (const bool of_stderr : {false, true}) {
    if (of_stderr != to_stderr && !options_.one_destination) continue;
    if (!std::exchange(unfinished_[of_stderr], false)) continue;
    writer_.Write(of_stderr ? STDERR_FILENO : STDOUT_FILENO,
                  absl::StrCat(agent::kSplitMarker, "\n"));
  }
}

void RunDisplay::WorkerLines(const std::string& lines, bool to_stderr) {
  const int fd = to_stderr ? STDERR_FILENO : STDOUT_FILENO;
  const bool around =
      DrawsBlock() && !block_.empty() && (to_stderr || options_.output_shares_terminal);
  unfinished_[to_stderr] = !lines.empty() && lines.back() != '\n' && lines.back() != '\r';
  if (!around) {
    writer_.Write(fd, lines);
    return;
  }
  // One piece, so that the block is dropped either whole or not at all.
  const std::string erase = Erase();
  writer_.Write(fd, absl::StrCat(erase, lines, Draw()));
}

void RunDisplay::CurrentRows(uint32_t local_rank, std::vector<std::string> rows) {
  if (rows.empty()) {
    current_.erase(local_rank);
  } else {
    current_[local_rank] = std::move(rows);
  }
}

std::vector<std::string> RunDisplay::Rows(size_t columns, size_t most) const {
  std::vector<std::string> drawn;
  size_t all = 0;
  for (const auto& [local_rank, rows] : current_) all += rows.size();
  for (const auto& [local_rank, rows] : current_) {
    for (const std::string& row : rows) {
      if (drawn.size() < most) drawn.push_back(TerminalLine(row, columns));
    }
    if (all > most) break;
  }
  return drawn;
}

void RunDisplay::Line(const std::string& line) {
  EndUnfinishedLine(true);
  WorkerLines(absl::StrCat("cadre: ", EscapeControl(line), "\n"), true);
}

void RunDisplay::Status(const v1::JobStatus& status, const std::vector<v1::Progress>& progress) {
  if (!DrawsBlock()) {
    for (const std::string& line : plain_.Update(status)) Line(line);
    return;
  }
  const TerminalSize size = SizeNow();
  // One column stays free, so that no terminal wraps the line.
  const size_t width = size.columns - 1;
  std::vector<std::string> block =
      StatusBlock(status, progress, options_.nodes, width, options_.color);
  const std::string pace = pace_.Text(status, progress, MonoNow());
  if (!pace.empty()) block.push_back(TerminalLine("  " + pace, width));
  // The cursor cannot go up to rows that have scrolled out of the terminal.
  const size_t room = size.rows - std::min(size.rows, block.size() + 1);
  for (std::string& row : Rows(width, std::min(kCurrentRows, room))) {
    block.push_back(std::move(row));
  }
  if (block == block_) return;
  std::string text = Erase();
  block_ = std::move(block);
  writer_.Write(STDERR_FILENO, absl::StrCat(text, Draw()));
}

void RunDisplay::Finish(const agent::Exit& exit) {
  EndUnfinishedLine(true);
  std::string text = DrawsBlock() ? Erase() : "";
  block_.clear();
  VerdictStyle style;
  style.log_dir = options_.log_dir;
  style.color = options_.color;
  const bool succeeded = exit.verdict.outcome() == v1::SUCCEEDED;
  const bool ended = exit.verdict.outcome() != v1::JOB_PHASE_UNSPECIFIED;
  if (ended && !succeeded) {
    absl::StrAppend(&text, VerdictText(exit.verdict, style));
  } else if (ended) {
    absl::StrAppend(&text, SuccessText(exit.verdict, exit.timeline, options_.color));
  }
  if (options_.timeline) absl::StrAppend(&text, TimelineText(exit.timeline));
  if (!exit.message.empty()) {
    absl::StrAppend(&text, "cadre: ", EscapeControl(exit.message), "\n");
  }
  if (!ended) absl::StrAppend(&text, VerdictDetails(exit.own, style));
  writer_.Write(STDERR_FILENO, std::move(text));
  if (options_.json && ended) writer_.Write(STDOUT_FILENO, JsonText(exit.verdict) + "\n");
}

}  // namespace cadre::launcher
