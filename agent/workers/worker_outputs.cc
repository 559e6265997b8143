#include "agent/workers/worker_outputs.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/base/attributes.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/own_files.h"

namespace cadre::agent {
namespace {

constexpr uint8_t kStandardError = 2;

}  // namespace

WorkerOutputs::WorkerOutputs(const OutputOptions& options, Display& display)
    : prefix_template_(options.prefix_template),
      display_(display),
      filtered_stdout_(options.stdout_filters),
      filtered_stderr_(options.stderr_filters) {}

void WorkerOutputs::OpenFiltered(const std::string& directory) {
  if (directory.empty()) return;
  for (const bool of_stderr : {false, true}) {
    FilteredLines& lines = of_stderr ? filtered_stderr_ : filtered_stdout_;
    const std::string path =
        absl::StrCat(directory, of_stderr ? "/filtered_stderr.log" : "/filtered_stdout.log");
    if (lines.wanted() && !lines.Open(path)) {
      display_.Line(
          absl::StrCat("cannot write ", path, ", so the lines that ",
                       of_stderr ? "--duplicate-stderr-filters" : "--duplicate-stdout-filters",
                       " names are only shown"));
    }
  }
}

void WorkerOutputs::KeepOnly(const std::set<uint32_t>& kept) {
  EndUnfinishedLine();
  for (auto it = streams_.begin(); it != streams_.end();) {
    it = kept.count(it->first) != 0 ? std::next(it) : streams_.erase(it);
  }
}

WorkerOutputs::Stream WorkerOutputs::StreamOf(const std::string& prefix, bool to_stderr) const {
  return {display_.DrawsCurrentRows(to_stderr), LineAssembler(prefix), TerminalRows(prefix)};
}

void WorkerOutputs::Begin(const PrefixFields& of) {
  Flush(of.local_rank);
  EndUnfinishedLine();
  const std::string prefix = LinePrefix(prefix_template_, of);
  streams_.erase(of.local_rank);
  streams_.emplace(of.local_rank,
                   Streams{StreamOf(prefix, false), StreamOf(prefix, true), LineAssembler()});
}

std::string WorkerOutputs::Add(uint32_t local_rank, const supervisor::OutputFrame& frame) {
  const auto found = streams_.find(local_rank);
  if (found == streams_.end()) return "";
  Streams& streams = found->second;
  if (frame.stream == kProgressStream) return streams.progress.Add(frame.bytes, frame.dropped);
  const bool to_stderr = frame.stream == kStandardError;
  Stream& stream = to_stderr ? streams.standard_error : streams.standard_output;
  if (!stream.drawn) {
    Show(stream.lines.Add(frame.bytes, frame.dropped), stream, to_stderr);
  } else {
    const std::string lines = stream.rows.Add(frame.bytes, frame.dropped);
    Stream& other = to_stderr ? streams.standard_output : streams.standard_error;
    // A finished bar must stand above what is written after it.
    if (!lines.empty()) Show(other.rows.OnOtherStreamOutput(), other, !to_stderr);
    Show(lines, stream, to_stderr);
  }
  ShowRows(local_rank, streams);
  return "";
}

void WorkerOutputs::ShowRows(uint32_t local_rank, Streams& streams) {
  std::vector<std::string> rows = streams.standard_output.rows.Drawn();
  for (std::string& row : streams.standard_error.rows.Drawn()) rows.push_back(std::move(row));
  if (rows.empty() && !streams.has_rows) return;
  streams.has_rows = !rows.empty();
  display_.CurrentRows(local_rank, std::move(rows));
}

void WorkerOutputs::EndUnfinishedLine() {
  if (unfinished_ == nullptr) return;
  display_.WorkerLines(unfinished_->lines.Interrupt(), unfinished_to_stderr_);
  unfinished_ = nullptr;
}

void WorkerOutputs::Show(const std::string& lines, Stream& from, bool to_stderr) {
  if (lines.empty()) return;
  if (unfinished_ != &from) EndUnfinishedLine();
  display_.WorkerLines(lines, to_stderr);
  unfinished_ = from.lines.within_line() ? &from : nullptr;
  unfinished_to_stderr_ = to_stderr;
  FilteredLines& filtered = to_stderr ? filtered_stderr_ : filtered_stdout_;
  if (!filtered.wanted()) return;
  // Each state of a progress bar becomes a line there.
  filtered.Add(absl::StrReplaceAll(lines, {{"\r\n", "\n"}, {"\r", "\n"}}),
               from.lines.prefix().size());
}

void WorkerOutputs::Flush(uint32_t local_rank, Streams& streams) {
  for (const bool to_stderr : {false, true}) {
    Stream& stream = to_stderr ? streams.standard_error : streams.standard_output;
    Show(stream.drawn ? stream.rows.Finish() : stream.lines.Finish(), stream, to_stderr);
  }
  ShowRows(local_rank, streams);
}

void WorkerOutputs::Flush(uint32_t local_rank) {
  const auto found = streams_.find(local_rank);
  if (found != streams_.end()) Flush(local_rank, found->second);
}

void WorkerOutputs::FlushAll() {
  for (auto& [local_rank, streams] : streams_) Flush(local_rank, streams);
}

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
  // Open() does not wait for a file system that is known not to answer.
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

bool FilteredLines::Drain() { return thread_.Drain(kFileTaskHungAfter); }

bool FilteredLines::Open(const std::string& path) {
  file_ = std::make_shared<File>();
  file_->path = path;
  return thread_.ResultWithin(kFileTaskHungAfter, [file = file_] { return file->Open(); })
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
  if (thread_.IsHung(MonoNow()) || !thread_.HasRoom(size)) {
    left_out_ += size;
    return;
  }
  thread_.Post([file = file_, skipped = std::exchange(left_out_, 0),
                chosen = std::move(chosen)] { file->Append(skipped, chosen); },
               size);
}

std::string LinePrefix(absl::string_view prefix_template, const PrefixFields& fields) {
  if (prefix_template.empty()) prefix_template = "[${host}:${rank}] ";
  return absl::StrReplaceAll(prefix_template, {{"${host}", fields.host},
                                               {"${hostname}", fields.host},
                                               {"${role_name}", fields.role},
                                               {"${rank}", absl::StrCat(fields.rank)},
                                               {"${local_rank}", absl::StrCat(fields.local_rank)}});
}

void LineAssembler::Emit(std::string& out, absl::string_view end) {
  if (!within_line_) {
    // A leading carriage return moves to before the prefix, so it is written first.
    const size_t text = std::min(line_.find_first_not_of('\r'), line_.size());
    absl::StrAppend(&out, absl::string_view(line_).substr(0, text), prefix_);
    line_.erase(0, text);
  }
  absl::StrAppend(&out, line_, end);
  line_.clear();
  within_line_ = end.empty();
}

bool LineAssembler::HasText() const {
  return within_line_ || line_.find_first_not_of('\r') != std::string::npos;
}

std::string LineAssembler::Interrupt() {
  return std::exchange(within_line_, false) ? absl::StrCat(kSplitMarker, "\n") : "";
}

std::string LineAssembler::Add(absl::string_view bytes, uint32_t dropped) {
  std::string out;
  if (dropped != 0) {
    if (HasText()) Emit(out, "");
    out += Interrupt();
    absl::StrAppend(&out, prefix_, "[", dropped, " bytes left out here; the log file has them]\n");
    after_return_ = return_is_out_ = false;
  }
  while (!bytes.empty()) {
    const bool newline = bytes.front() == '\n';
    if (std::exchange(return_is_out_, false) && newline) {
      out += '\n';
      bytes.remove_prefix(1);
      continue;
    }
    if (std::exchange(after_return_, false)) {
      if (HasText()) {
        Emit(out, newline ? "\r\n" : "\r");
        bytes.remove_prefix(newline ? 1 : 0);
      } else if (line_.empty()) {
        line_ = "\r";
      } else {
        out += '\r';
      }
      continue;
    }
    const size_t end = bytes.find_first_of("\r\n");
    CADRE_CHECK(line_.size() <= kMaxOutputLine, "a line of ", line_.size(), " bytes");
    const size_t room = kMaxOutputLine - line_.size();
    const size_t take = std::min({end, bytes.size(), room});
    absl::StrAppend(&line_, bytes.substr(0, take));
    bytes.remove_prefix(take);
    if (bytes.empty()) break;
    if (take != end) {  // the line is full and continues
      Emit(out, "");
      continue;
    }
    after_return_ = bytes.front() == '\r';
    bytes.remove_prefix(1);
    if (!after_return_) Emit(out, "\n");
  }
  // A reader of the pipe must see each state of a progress bar when it is written.
  if (after_return_ && HasText()) {
    Emit(out, "\r");
    after_return_ = false;
    return_is_out_ = true;
  }
  return out;
}

std::string LineAssembler::Finish() {
  std::string out;
  if (HasText()) Emit(out, "\n");
  line_.clear();
  after_return_ = return_is_out_ = false;
  return out;
}

namespace {

constexpr char kEscape = '\x1b';
// With more rows than this, the upper ones scroll out as at the top of a terminal.
constexpr size_t kMostRows = 32;
// Longer text that begins like an escape sequence is treated as text.
constexpr size_t kLongestSequence = 1024;
// The limit of consecutive colour sequences.
constexpr size_t kLongestColour = 256;

bool IsBlank(absl::string_view text) { return absl::StripAsciiWhitespace(text).empty(); }

// The length of the escape sequence at the start of `text`; npos: it is incomplete.
size_t SequenceSize(absl::string_view text) {
  if (text.size() < 2) return absl::string_view::npos;
  if (text[1] == ']') {  // a title, a link: up to BEL or ESC backslash
    for (size_t i = 2; i < text.size(); ++i) {
      if (text[i] == '\x07') return i + 1;
      if (text[i] == '\\' && text[i - 1] == kEscape) return i + 1;
    }
    return absl::string_view::npos;
  }
  if (text[1] != '[') return 2;
  for (size_t i = 2; i < text.size(); ++i) {
    if (text[i] >= 0x40 && text[i] <= 0x7e) return i + 1;
    if (text[i] < 0x20 || text[i] > 0x3f) return i;  // it is malformed
  }
  return absl::string_view::npos;
}

}  // namespace

bool TerminalRows::IsDrawing() const {
  if (rows_.size() > 1 || hidden_ || rows_[at_].redrawn) return true;
  return returned_ && !rows_[at_].text.empty();
}

std::vector<std::string> TerminalRows::Drawn() const {
  std::vector<std::string> drawn;
  if (!IsDrawing()) return drawn;
  for (const Row& row : rows_) {
    if (!IsBlank(row.text)) drawn.push_back(absl::StrCat(prefix_, row.text));
  }
  return drawn;
}

void TerminalRows::CommitRows(size_t count, std::string& out) {
  for (size_t i = 0; i < count; ++i) {
    const Row& row = rows_[i];
    const bool blank = IsBlank(row.text);
    if (blank && (row.redrawn || !row.ended)) continue;
    // Programs write blanks behind a bar to cover a longer one that was there.
    const absl::string_view text =
        row.redrawn ? absl::StripTrailingAsciiWhitespace(row.text) : absl::string_view(row.text);
    absl::StrAppend(&out, prefix_, text, "\n");
  }
  rows_.erase(rows_.begin(), rows_.begin() + static_cast<ptrdiff_t>(count));
  if (rows_.empty()) rows_.emplace_back();
  at_ -= std::min(at_, count);
}

void TerminalRows::Put(absl::string_view text, std::string& out) {
  if (!writing_) {
    writing_ = true;
    // If a row is written again and again without the cursor going above it, the rows above are
    // finished.
    if (++rows_[at_].drawings > 1) CommitRows(at_, out);
    // Text written as a new line where a bar was is not a bar.
    if (from_above_) rows_[at_].redrawn = false;
    if (returned_) rows_[at_].redrawn = true;
    if (at_begin_) rows_[at_].text.clear();
    at_begin_ = returned_ = from_above_ = false;
    rows_[at_].text += colour_;
    colour_.clear();
  }
  while (rows_[at_].text.size() + text.size() > kMaxOutputLine) {
    const size_t room = kMaxOutputLine - std::min(kMaxOutputLine, rows_[at_].text.size());
    absl::StrAppend(&rows_[at_].text, text.substr(0, room), kSplitMarker);
    rows_[at_].ended = true;
    CommitRows(at_ + 1, out);
    if (rows_.size() > 1) rows_.insert(rows_.begin(), Row());
    at_ = 0;
    text.remove_prefix(room);
  }
  absl::StrAppend(&rows_[at_].text, text);
}

void TerminalRows::EnterFromAbove() {
  rows_[at_].drawings = 0;
  writing_ = false;
  from_above_ = at_begin_;
}

void TerminalRows::Newline(std::string& out) {
  Row& row = rows_[at_];
  row.ended = true;
  returned_ = false;
  const bool lowest = at_ + 1 == rows_.size();
  // The cursor may return to a row of a bar, or to a blank row on the way to another bar.
  const bool plain = !row.redrawn && !hidden_ && !IsBlank(row.text);
  if (lowest && plain) {
    CommitRows(rows_.size(), out);
  } else {
    if (lowest) rows_.emplace_back();
    ++at_;
    if (rows_.size() > kMostRows) CommitRows(1, out);
  }
  at_begin_ = true;
  EnterFromAbove();
}

void TerminalRows::Up(size_t rows) {
  returned_ = writing_ = from_above_ = false;
  for (rows = std::min(rows, kMostRows); rows > 0; --rows) {
    if (at_ > 0) {
      --at_;
    } else if (rows_.size() < kMostRows) {
      // The row that was there has been output as a line already, so a new one is inserted.
      rows_.insert(rows_.begin(), Row());
    }
    rows_[at_].redrawn = true;
  }
}

void TerminalRows::Down(size_t rows, std::string& out) {
  returned_ = false;
  for (rows = std::min(rows, kMostRows); rows > 0; --rows) {
    if (at_ + 1 == rows_.size()) rows_.emplace_back();
    ++at_;
    EnterFromAbove();
    if (rows_.size() > kMostRows) CommitRows(1, out);
  }
}

void TerminalRows::EraseRow() {
  rows_[at_].text.clear();
  rows_[at_].redrawn = true;
  writing_ = from_above_ = false;
}

// Spinners are drawn with backspaces. In a coloured row nothing is removed, because it could be
// part of a colour sequence.
void TerminalRows::Backspace() {
  std::string& text = rows_[at_].text;
  rows_[at_].redrawn = true;
  if (text.empty() || absl::StrContains(text, kEscape)) return;
  const auto continues = [&text] {
    return (static_cast<unsigned char>(text.back()) & 0xc0) == 0x80;
  };
  while (text.size() > 1 && continues()) text.pop_back();
  text.pop_back();
}

void TerminalRows::ApplySequence(absl::string_view sequence, std::string& out) {
  if (!absl::StartsWith(sequence, "\x1b[")) return;
  const char what = sequence.back();
  const absl::string_view parameters = sequence.substr(2, sequence.size() - 3);
  uint32_t number = 0;
  const bool given = absl::SimpleAtoi(parameters, &number);
  const size_t times = std::max<uint32_t>(given ? number : 1, 1);
  switch (what) {
    case 'm':
      if (writing_) {
        absl::StrAppend(&rows_[at_].text, sequence);
      } else {
        if (colour_.size() > kLongestColour) colour_.clear();
        absl::StrAppend(&colour_, sequence);
      }
      break;
    case 'F':
      at_begin_ = true;
      ABSL_FALLTHROUGH_INTENDED;
    case 'A':
      Up(times);
      break;
    case 'E':
      at_begin_ = true;
      ABSL_FALLTHROUGH_INTENDED;
    case 'B':
      Down(times, out);
      break;
    case 'G':
      if (times == 1) at_begin_ = returned_ = true;
      writing_ = false;
      break;
    case 'K':
      // Erases up to the end of the row. The cursor is already at the end unless it is at the
      // beginning.
      if (number == 2 || (number == 0 && at_begin_)) EraseRow();
      break;
    case 'J':
      if (number != 0) break;
      if (at_begin_) EraseRow();
      rows_.resize(at_ + 1);
      break;
    case 'l':
    case 'h':
      if (parameters == "?25") hidden_ = what == 'l';
      break;
    default:
      break;
  }
}

std::string TerminalRows::Add(absl::string_view bytes, uint32_t dropped) {
  std::string out;
  if (dropped != 0) {
    out = Finish();
    absl::StrAppend(&out, prefix_, "[", dropped, " bytes left out here; the log file has them]\n");
  }
  const std::string joined = sequence_.empty() ? "" : absl::StrCat(sequence_, bytes);
  if (!sequence_.empty()) bytes = joined;
  sequence_.clear();
  while (!bytes.empty()) {
    const size_t text = std::min(bytes.find_first_of("\r\n\b\x1b"), bytes.size());
    if (text > 0) {
      Put(bytes.substr(0, text), out);
      bytes.remove_prefix(text);
      continue;
    }
    size_t took = 1;
    if (bytes[0] == '\n') {
      Newline(out);
    } else if (bytes[0] == '\r') {
      at_begin_ = returned_ = true;
      writing_ = false;
    } else if (bytes[0] == '\b') {
      Backspace();
    } else {
      const size_t size = SequenceSize(bytes);
      if (size == absl::string_view::npos && bytes.size() < kLongestSequence) {
        sequence_ = std::string(bytes);
        break;
      }
      took = size == absl::string_view::npos ? 1 : size;
      ApplySequence(bytes.substr(0, took), out);
    }
    bytes.remove_prefix(took);
  }
  return out;
}

std::string TerminalRows::OnOtherStreamOutput() {
  std::string out;
  const bool below = at_ > 0 && at_ + 1 == rows_.size() && rows_[at_].text.empty() && !hidden_;
  if (below) CommitRows(at_, out);
  return out;
}

std::string TerminalRows::Finish() {
  std::string out;
  CommitRows(rows_.size(), out);
  at_begin_ = true;
  returned_ = writing_ = hidden_ = false;
  colour_.clear();
  sequence_.clear();
  return out;
}

}  // namespace cadre::agent
