// What a worker's stream shows at the bottom of a terminal: a model of its last rows, since
// progress bars move the cursor in them (tqdm, one bar within another, goes down by newlines and up
// by
// "\x1b[A"; rich clears its rows and draws them anew). A row that the program has left for good
// comes out as a line; the others are what is drawn now. The model has no width: a row is as long
// as the program made it. Pure; one thread.
#ifndef CADRE_AGENT_WORKERS_LIVE_ROWS_H_
#define CADRE_AGENT_WORKERS_LIVE_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace cadre::agent {

class LiveRows {
 public:
  explicit LiveRows(std::string prefix = "") : prefix_(std::move(prefix)) {}

  // The lines that `bytes` completes, each with prefix and '\n'. `dropped` bytes were lost before
  // these. Colours stay; other commands for terminals take effect in the model and are left out.
  std::string Add(absl::string_view bytes, uint32_t dropped = 0);
  // The program has written something elsewhere: the rows above the cursor come out, where it
  // stands below all that was drawn.
  std::string WroteElsewhere();
  // All rows come out: the stream is over.
  std::string Finish();

  // What is drawn below the lines now, from the top, each with the prefix. Empty where nothing is
  // being overwritten: a line without an end is shown when it has one.
  std::vector<std::string> Drawn() const;

 private:
  struct Row {
    std::string text;
    bool redrawn = false;  // it was overwritten, or the cursor came back to it
    bool ended = false;    // by a newline
    int drawings = 0;      // how often it was written since the cursor was above it last
  };

  void Put(absl::string_view text, std::string& out);
  void Newline(std::string& out);
  void Up(size_t rows);
  void Down(size_t rows, std::string& out);
  void EraseRow();
  void Backspace();
  void Obey(absl::string_view sequence, std::string& out);
  // The first `count` rows come out.
  void Settle(size_t count, std::string& out);
  void EnterFromAbove();
  bool IsDrawing() const;

  const std::string prefix_;
  std::vector<Row> rows_{1};
  size_t at_ = 0;            // the cursor's row
  bool at_begin_ = true;     // of the row: what is written there overwrites it
  bool from_above_ = false;  // it came there by a newline, and nothing else was said
  bool returned_ = false;    // by a carriage return
  bool writing_ = false;     // since the cursor came there
  bool hidden_ = false;      // the cursor is, as rich does while it draws
  std::string colour_;       // set before the next text
  std::string sequence_;     // an escape sequence whose end has not come
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_LIVE_ROWS_H_
