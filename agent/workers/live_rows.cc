#include "agent/workers/live_rows.h"

#include <algorithm>

#include "absl/base/attributes.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "agent/workers/rank_output.h"

namespace cadre::agent {
namespace {

constexpr char kEscape = '\x1b';
// More rows than this scroll out, as at the top of a terminal.
constexpr size_t kMostRows = 32;
// A longer sequence is none.
constexpr size_t kLongestSequence = 1024;
// Of colours that follow each other.
constexpr size_t kLongestColour = 256;

bool IsBlank(absl::string_view text) { return absl::StripAsciiWhitespace(text).empty(); }

// Bytes of the escape sequence that `text` begins with; npos: its end is missing.
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
    if (text[i] < 0x20 || text[i] > 0x3f) return i;  // it is broken off
  }
  return absl::string_view::npos;
}

}  // namespace

bool LiveRows::IsDrawing() const {
  if (rows_.size() > 1 || hidden_ || rows_[at_].redrawn) return true;
  return returned_ && !rows_[at_].text.empty();
}

std::vector<std::string> LiveRows::Drawn() const {
  std::vector<std::string> drawn;
  if (!IsDrawing()) return drawn;
  for (const Row& row : rows_) {
    if (!IsBlank(row.text)) drawn.push_back(absl::StrCat(prefix_, row.text));
  }
  return drawn;
}

void LiveRows::Settle(size_t count, std::string& out) {
  for (size_t i = 0; i < count; ++i) {
    const Row& row = rows_[i];
    const bool blank = IsBlank(row.text);
    if (blank && (row.redrawn || !row.ended)) continue;
    // A bar is followed by the blanks that covered a longer one.
    const absl::string_view text =
        row.redrawn ? absl::StripTrailingAsciiWhitespace(row.text) : absl::string_view(row.text);
    absl::StrAppend(&out, prefix_, text, "\n");
  }
  rows_.erase(rows_.begin(), rows_.begin() + static_cast<ptrdiff_t>(count));
  if (rows_.empty()) rows_.emplace_back();
  at_ -= std::min(at_, count);
}

void LiveRows::Put(absl::string_view text, std::string& out) {
  if (!writing_) {
    writing_ = true;
    // Drawn again and again without a look at what is above: that is left for good.
    if (++rows_[at_].drawings > 1) Settle(at_, out);
    // A line that is written where a bar was is a line.
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
    Settle(at_ + 1, out);
    if (rows_.size() > 1) rows_.insert(rows_.begin(), Row());
    at_ = 0;
    text.remove_prefix(room);
  }
  absl::StrAppend(&rows_[at_].text, text);
}

void LiveRows::EnterFromAbove() {
  rows_[at_].drawings = 0;
  writing_ = false;
  from_above_ = at_begin_;
}

void LiveRows::Newline(std::string& out) {
  Row& row = rows_[at_];
  row.ended = true;
  returned_ = false;
  const bool lowest = at_ + 1 == rows_.size();
  // A row of a bar, or one on the way to another bar, may be come back to.
  const bool plain = !row.redrawn && !hidden_ && !IsBlank(row.text);
  if (lowest && plain) {
    Settle(rows_.size(), out);
  } else {
    if (lowest) rows_.emplace_back();
    ++at_;
    if (rows_.size() > kMostRows) Settle(1, out);
  }
  at_begin_ = true;
  EnterFromAbove();
}

void LiveRows::Up(size_t rows) {
  returned_ = writing_ = from_above_ = false;
  for (rows = std::min(rows, kMostRows); rows > 0; --rows) {
    if (at_ > 0) {
      --at_;
    } else if (rows_.size() < kMostRows) {
      // What stood there has come out as a line. It is written over here.
      rows_.insert(rows_.begin(), Row());
    }
    rows_[at_].redrawn = true;
  }
}

void LiveRows::Down(size_t rows, std::string& out) {
  returned_ = false;
  for (rows = std::min(rows, kMostRows); rows > 0; --rows) {
    if (at_ + 1 == rows_.size()) rows_.emplace_back();
    ++at_;
    EnterFromAbove();
    if (rows_.size() > kMostRows) Settle(1, out);
  }
}

void LiveRows::EraseRow() {
  rows_[at_].text.clear();
  rows_[at_].redrawn = true;
  writing_ = from_above_ = false;
}

// As of a wheel that turns. In a coloured row it takes nothing away, which could be a colour's end.
void LiveRows::Backspace() {
  std::string& text = rows_[at_].text;
  rows_[at_].redrawn = true;
  if (text.empty() || absl::StrContains(text, kEscape)) return;
  const auto continues = [&text] {
    return (static_cast<unsigned char>(text.back()) & 0xc0) == 0x80;
  };
  while (text.size() > 1 && continues()) text.pop_back();
  text.pop_back();
}

void LiveRows::Obey(absl::string_view sequence, std::string& out) {
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
      // Up to the end: the cursor is there already unless it is at the begin.
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

std::string LiveRows::Add(absl::string_view bytes, uint32_t dropped) {
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
      Obey(bytes.substr(0, took), out);
    }
    bytes.remove_prefix(took);
  }
  return out;
}

std::string LiveRows::WroteElsewhere() {
  std::string out;
  const bool below = at_ > 0 && at_ + 1 == rows_.size() && rows_[at_].text.empty() && !hidden_;
  if (below) Settle(at_, out);
  return out;
}

std::string LiveRows::Finish() {
  std::string out;
  Settle(rows_.size(), out);
  at_begin_ = true;
  returned_ = writing_ = hidden_ = false;
  colour_.clear();
  sequence_.clear();
  return out;
}

}  // namespace cadre::agent
