// A small terminal for tests: what a person sees of the bytes that a program writes to one. Lines
// that are longer than it is wide are broken, and are broken anew when it gets another width, as in
// most terminals. One thread.
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
    std::string text;     // without blanks at its end
    bool broken = false;  // its line goes on in the next row
  };
  // All rows from the first on, also those that have left at the top.
  std::vector<Row> Rows() const;
  // How many of them contain this.
  size_t Count(absl::string_view text) const;
  // Them, a line each, for messages of failed assertions.
  std::string Text() const;
  // Escape sequences that it does not know.
  const std::vector<std::string>& unknown() const { return unknown_; }

 private:
  // A character; empty: the second column of the one before.
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
  size_t column_ = 0;  // columns_: the next character begins the next row
  std::string rest_;   // of a character or sequence that has not come whole
  std::vector<std::string> unknown_;
};

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_SCREEN_H_
