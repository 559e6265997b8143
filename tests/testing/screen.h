// A small terminal for tests: it shows what a user would see of a program's terminal output. Lines
// longer than its width are wrapped, and are wrapped again when the width changes, as in most
// terminals. One thread.
#ifndef CADRE_TESTS_TESTING_SCREEN_H_
#define CADRE_TESTS_TESTING_SCREEN_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace cadre {

class Screen {
 public:
  Screen(size_t rows, size_t columns) : height_(rows), columns_(columns) {}

  void Write(absl::string_view bytes);
  void Resize(size_t rows, size_t columns);

  struct Row {
    std::string text;     // without trailing blanks
    bool broken = false;  // its line continues in the next row
  };
  // Returns all rows from the first on, including those that have scrolled off the top.
  std::vector<Row> Rows() const;
  // Returns how many rows contain this text.
  size_t Count(absl::string_view text) const;
  // Returns all rows, one per line, for messages of failed assertions.
  std::string Text() const;
  // Returns the escape sequences that this terminal does not implement.
  const std::vector<std::string>& unknown() const { return unknown_; }

 private:
  // A cell holds a character; an empty cell is the second column of the wide character before it.
  using Cells = std::vector<std::string>;
  struct Line {
    Cells cells;
    bool broken = false;
  };

  size_t Top() const { return lines_.size() > height_ ? lines_.size() - height_ : 0; }
  void Down();
  void Put(const std::string& character);
  size_t Obey(absl::string_view sequence);

  size_t height_;
  size_t columns_;
  std::vector<Line> lines_{1};
  size_t row_ = 0;
  size_t column_ = 0;  // if it is columns_, the next character begins the next row
  std::string rest_;   // an incomplete character or sequence
  std::vector<std::string> unknown_;
};

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_SCREEN_H_
