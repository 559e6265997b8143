#include "tests/testing/screen.h"

#include <stdlib.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

size_t CharacterSize(unsigned char first) {
  return first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

// Whether the character is Chinese, Japanese or Korean, or an emoji.
bool IsWide(absl::string_view character) {
  return (character.size() == 3 && static_cast<unsigned char>(character[0]) >= 0xe3 &&
          static_cast<unsigned char>(character[0]) < 0xee) ||
         character.size() == 4;
}

}  // namespace

void Screen::Down() {
  if (++row_ == lines_.size()) lines_.emplace_back();
}

void Screen::Put(const std::string& character) {
  const size_t columns = IsWide(character) ? 2 : 1;
  if (column_ + columns > columns_) {
    lines_[row_].broken = true;
    Down();
    column_ = 0;
  }
  Cells& cells = lines_[row_].cells;
  if (cells.size() < column_ + columns) cells.resize(column_ + columns, " ");
  cells[column_] = character;
  if (columns == 2) cells[column_ + 1].clear();
  column_ += columns;
}

// Executes an escape sequence. Returns its length, or 0 if it is not complete yet.
size_t Screen::Obey(absl::string_view sequence) {
  if (sequence.size() < 2) return 0;
  if (sequence[1] != '[') {
    unknown_.emplace_back(sequence.substr(0, 2));
    return 2;
  }
  size_t end = 2;
  while (end < sequence.size() && (sequence[end] < 0x40 || sequence[end] > 0x7e)) ++end;
  if (end == sequence.size()) return 0;
  const std::string parameters(sequence.substr(2, end - 2));
  const int number = atoi(parameters.c_str());
  const auto times = static_cast<size_t>(std::max(number, 1));
  std::vector<std::string>& row = lines_[row_].cells;
  if (sequence[end] == 'A') {
    row_ = std::max(Top(), row_ - std::min(row_, times));
  } else if (sequence[end] == 'K' && number == 0) {
    row.resize(std::min(row.size(), column_));
  } else if (sequence[end] == 'K' && number == 2) {
    row.clear();
  } else if (sequence[end] == 'J' && number == 0) {
    row.resize(std::min(row.size(), column_));
    lines_[row_].broken = false;
    lines_.resize(row_ + 1);
  } else if (sequence[end] != 'm') {
    unknown_.emplace_back(sequence.substr(0, end + 1));
  }
  return end + 1;
}

void Screen::Write(absl::string_view bytes) {
  const std::string all = absl::StrCat(rest_, bytes);
  rest_.clear();
  absl::string_view left = all;
  while (!left.empty()) {
    size_t took = 1;
    if (left[0] == '\n') {
      // The newline ends a line that was wrapped before and has now been overwritten.
      if (column_ < columns_) lines_[row_].broken = false;
      Down();
    } else if (left[0] == '\r') {
      column_ = 0;
    } else if (left[0] == '\x1b') {
      took = Obey(left);
    } else {
      took = CharacterSize(static_cast<unsigned char>(left[0]));
      if (took > left.size()) took = 0;
      if (took > 0) Put(std::string(left.substr(0, took)));
    }
    if (took == 0) {
      rest_ = std::string(left);
      return;
    }
    left.remove_prefix(took);
  }
}

void Screen::Resize(size_t rows, size_t columns) {
  std::vector<Line> before = std::exchange(lines_, {});
  size_t cursor = 0, cursor_row = 0;
  columns_ = columns;
  height_ = rows;
  for (size_t i = 0; i < before.size(); ++i) {
    Cells cells;
    bool here = false;
    for (;; ++i) {
      if (i == row_) {
        here = true;
        cursor = cells.size() + column_;
      }
      cells.insert(cells.end(), before[i].cells.begin(), before[i].cells.end());
      if (!before[i].broken || i + 1 == before.size()) break;
    }
    const size_t first = lines_.size();
    for (size_t at = 0; at == 0 || at < cells.size(); at += columns) {
      Line line;
      line.cells.assign(
          cells.begin() + static_cast<ptrdiff_t>(at),
          cells.begin() + static_cast<ptrdiff_t>(std::min(at + columns, cells.size())));
      line.broken = at + columns < cells.size();
      lines_.push_back(std::move(line));
    }
    if (!here) continue;
    cursor_row = std::min(first + cursor / columns, lines_.size() - 1);
    column_ = cursor - (cursor_row - first) * columns;
  }
  row_ = cursor_row;
}

std::vector<Screen::Row> Screen::Rows() const {
  std::vector<Row> rows;
  for (const Line& line : lines_) {
    Row row;
    row.broken = line.broken;
    for (const std::string& cell : line.cells) row.text += cell;
    row.text.erase(row.text.find_last_not_of(' ') + 1);
    rows.push_back(std::move(row));
  }
  return rows;
}

size_t Screen::Count(absl::string_view text) const {
  const std::vector<Row> rows = Rows();
  return static_cast<size_t>(std::count_if(rows.begin(), rows.end(), [text](const Row& row) {
    return absl::StrContains(row.text, text);
  }));
}

std::string Screen::Text() const {
  std::string text;
  for (const Row& row : Rows()) absl::StrAppend(&text, row.text, row.broken ? "\\" : "", "\n");
  return text;
}

}  // namespace cadre
