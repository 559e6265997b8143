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
#include "base/clock.h"
#include "base/text.h"
#include "launcher/display/json_text.h"
#include "launcher/display/terminal_line.h"
#include "launcher/display/timeline_text.h"
#include "launcher/display/verdict_text.h"

namespace cadre::launcher {
namespace {

size_t TerminalWidth() {
  size_t columns = 0;
  const char* text = getenv("COLUMNS");
  winsize size = {};
  if (text == nullptr || !absl::SimpleAtoi(text, &columns) || columns == 0) {
    columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
  }
  // One less, so that no terminal wraps.
  return std::max<size_t>(columns, 20) - 1;
}

bool IsPipe(int fd) {
  struct stat found;
  return fstat(fd, &found) == 0 && S_ISFIFO(found.st_mode);
}

}  // namespace

RunDisplayOptions DetectTerminal(bool no_progress) {
  RunDisplayOptions options;
  const char* term = getenv("TERM");
  const char* no_color = getenv("NO_COLOR");
  const bool able = isatty(STDERR_FILENO) && term != nullptr && absl::string_view(term) != "dumb";
  // Who reads a pipe (`| tee`) may write to this terminal too, into the middle of the block.
  options.live = able && !no_progress && !IsPipe(STDOUT_FILENO);
  options.in_foreground = [] {
    const pid_t owner = tcgetpgrp(STDERR_FILENO);
    // It is no terminal of this session's.
    return owner < 0 || owner == getpgrp();
  };
  options.output_shares_terminal = isatty(STDOUT_FILENO);
  options.color = able && (no_color == nullptr || no_color[0] == '\0');
  return options;
}

RunDisplay::RunDisplay(RunDisplayOptions options, OutputWriter& writer)
    : options_(std::move(options)), writer_(writer) {}

bool RunDisplay::Live() {
  if (!options_.live) return false;
  if (options_.in_foreground()) return true;
  // What was drawn before lies above the shell's prompt.
  drawn_ = 0;
  block_.clear();
  return false;
}

std::string RunDisplay::Erase() {
  if (drawn_ == 0) return "";
  std::string codes = "\r";
  for (size_t i = 1; i < drawn_; ++i) codes += "\x1b[A";
  drawn_ = 0;
  return codes + "\x1b[J";
}

std::string RunDisplay::Draw() const { return absl::StrJoin(block_, "\n"); }

void RunDisplay::WorkerLines(const std::string& lines, bool to_stderr) {
  const int fd = to_stderr ? STDERR_FILENO : STDOUT_FILENO;
  const bool around = Live() && !block_.empty() && (to_stderr || options_.output_shares_terminal);
  if (!around) {
    writer_.Write(fd, lines);
    return;
  }
  // One piece, so that the block is never left out half.
  std::string text = absl::StrCat(Erase(), lines, Draw());
  drawn_ = block_.size();
  writer_.Write(fd, std::move(text));
}

void RunDisplay::CurrentLine(uint32_t local_rank, const std::string& line) {
  if (line.empty()) {
    current_.erase(local_rank);
  } else {
    current_[local_rank] = line;
  }
}

void RunDisplay::Line(const std::string& line) {
  WorkerLines(absl::StrCat("cadre: ", EscapeControl(line), "\n"), true);
}

void RunDisplay::Status(const v1::JobStatus& status, const std::vector<v1::Progress>& progress) {
  if (!Live()) {
    for (const std::string& line : plain_.Update(status)) Line(line);
    return;
  }
  const size_t width = TerminalWidth();
  std::vector<std::string> block =
      StatusBlock(status, progress, options_.nodes, width, options_.color);
  const std::string pace = pace_.Text(status, progress, MonoNow());
  if (!pace.empty()) block.push_back(TerminalLine("  " + pace, width));
  size_t shown = 0;
  for (const auto& [local_rank, line] : current_) {
    if (shown++ > 0 && current_.size() > kCurrentLines) break;
    block.push_back(TerminalLine(line, width));
  }
  if (block == block_) return;
  std::string text = Erase();
  block_ = std::move(block);
  drawn_ = block_.size();
  writer_.Write(STDERR_FILENO, absl::StrCat(text, Draw()));
}

void RunDisplay::Finish(const agent::Exit& exit) {
  std::string text = Live() ? Erase() : "";
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
