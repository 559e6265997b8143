// Displays the standard output and error of this node's workers on the terminal, as whole lines
// with the worker's prefix; lines that match the user's filters are also written to a file. Also
// returns the lines on their progress descriptors. Used by one thread.
#ifndef CADRE_AGENT_WORKERS_WORKER_OUTPUTS_H_
#define CADRE_AGENT_WORKERS_WORKER_OUTPUTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "agent/display.h"
#include "agent/supervisor/frames.h"
#include "agent/workers/worker_options.h"
#include "base/scoped_fd.h"
#include "base/threads/file_thread.h"

namespace cadre::agent {

// A line is held until it ends, so that it is output in one piece. Once a line is longer than this,
// its text so far is output without a newline, and the rest follows as it arrives.
inline constexpr size_t kMaxOutputLine = 4 << 20;
// Appended to an unfinished line when other text must be written before its rest arrives. The rest
// then begins with its own prefix.
inline constexpr absl::string_view kSplitMarker = " [line continues]";

// The fields that a prefix template may name.
struct PrefixFields {
  std::string host;
  std::string role;
  uint32_t rank = 0;
  uint32_t local_rank = 0;
};

// Replaces ${host} (torchrun's ${hostname}), ${role_name}, ${rank} and ${local_rank}; an empty
// template is "[${host}:${rank}] ". Unknown names stay as they are.
std::string LinePrefix(absl::string_view prefix_template, const PrefixFields& fields);

// Assembles a worker's output, which comes in pieces of any size, into whole lines with a prefix,
// for a pipe. Nothing else is changed: the prefix is added at the
// beginning of each line, and of each state of a line that carriage returns overwrite.
class LineAssembler {
 public:
  explicit LineAssembler(std::string prefix = "") : prefix_(std::move(prefix)) {}

  // Returns the lines that `bytes` completes, each with prefix and '\n', or '\r' if the line is
  // being overwritten. `dropped` bytes were lost before these.
  std::string Add(absl::string_view bytes, uint32_t dropped = 0);

  const std::string& prefix() const { return prefix_; }
  // Whether the last output was an unfinished line, so that its rest must follow it directly.
  bool within_line() const { return within_line_; }
  // Called when other text is written before the rest of the line. Returns what must be written
  // before that text.
  std::string Interrupt();

  // Returns an unfinished last line; empty if there is none.
  std::string Finish();

 private:
  void Emit(std::string& out, absl::string_view end);
  // Whether the line has more than carriage returns.
  bool HasText() const;

  std::string prefix_;
  std::string line_;  // at most kMaxOutputLine
  // Whether the last byte was a carriage return. It is then either not yet in line_, or has been
  // output already (return_is_out_).
  bool after_return_ = false;
  bool return_is_out_ = false;
  bool within_line_ = false;
};

// Models the last rows that a worker's stream shows at the bottom of a terminal, because progress
// bars move the cursor in them. tqdm with nested bars moves down by newlines and up by "\x1b[A";
// rich clears its rows and redraws them. A row to which the program will not return is output as a
// line; the others are drawn in their current state. The model has no width: a row is as long as
// the program made it. Pure; one thread.
class TerminalRows {
 public:
  explicit TerminalRows(std::string prefix = "") : prefix_(std::move(prefix)) {}

  // Returns the lines that `bytes` completes, each with prefix and '\n'. `dropped` bytes were lost
  // before these. Colours are kept; other terminal commands change the model and are removed from
  // the lines.
  std::string Add(absl::string_view bytes, uint32_t dropped = 0);
  // Called when the program has written to its other stream. If the cursor is below all drawn rows,
  // the rows above it are returned as lines.
  std::string OnOtherStreamOutput();
  // Called when the stream has ended: returns all rows as lines.
  std::string Finish();

  // The rows drawn below the lines now, from the top, each with the prefix. Empty if no row is
  // being overwritten: an unfinished line is shown only once it ends.
  std::vector<std::string> Drawn() const;

 private:
  struct Row {
    std::string text;
    bool redrawn = false;  // it was overwritten, or the cursor came back to it
    bool ended = false;    // a newline ended it
    int drawings = 0;      // times it was written since the cursor was last above it
  };

  void Put(absl::string_view text, std::string& out);
  void Newline(std::string& out);
  void Up(size_t rows);
  void Down(size_t rows, std::string& out);
  void EraseRow();
  void Backspace();
  void ApplySequence(absl::string_view sequence, std::string& out);
  // Outputs the first `count` rows as lines.
  void CommitRows(size_t count, std::string& out);
  void EnterFromAbove();
  bool IsDrawing() const;

  const std::string prefix_;
  std::vector<Row> rows_{1};
  size_t at_ = 0;            // the cursor's row
  bool at_begin_ = true;     // at the row's begin: text overwrites the row
  bool from_above_ = false;  // a newline moved it there, and nothing was written since
  bool returned_ = false;    // a carriage return moved it there
  bool writing_ = false;     // something was written since the cursor moved there
  bool hidden_ = false;      // the cursor is hidden, as rich does while it draws
  std::string colour_;       // set before the next text
  std::string sequence_;     // an escape sequence that is not complete yet
};

// Copies lines of workers that contain one of some texts to a file: torchrun's
// --duplicate-stdout-filters. Used by one thread, which also renews the node's lease and therefore
// waits for no file.
class FilteredLines {
 public:
  // Without texts no line matches.
  explicit FilteredLines(std::vector<std::string> texts) : texts_(std::move(texts)) {}

  // Calls Drain().
  ~FilteredLines();
  FilteredLines(const FilteredLines&) = delete;
  FilteredLines& operator=(const FilteredLines&) = delete;

  bool wanted() const { return !texts_.empty(); }
  // Appends lines to `path` from now on. Returns false if it cannot be written. Waits only briefly
  // for a file system that does not answer.
  bool Open(const std::string& path);
  // Takes whole lines, each with a prefix of `prefix_bytes` that is written but not searched. They
  // are written asynchronously; if the file system does not keep up lines are dropped, and the file
  // notes it.
  void Add(absl::string_view lines, size_t prefix_bytes);
  // Waits briefly until all is written. Returns false if it is not.
  bool Drain();

 private:
  // Used by the file thread.
  struct File {
    bool Open();
    // Returns the number of bytes written.
    size_t Write(absl::string_view bytes);
    // `skipped`: bytes dropped before these. What a full disk does not accept is dropped too; once
    // there is room again the file notes the gap.
    void Append(size_t skipped, absl::string_view lines);

    std::string path;
    ScopedFd fd;
    size_t lost = 0;           // bytes dropped since the last successful write
    bool within_line = false;  // the rest of the line is dropped
  };

  const std::vector<std::string> texts_;
  FileThread thread_{{}};
  std::shared_ptr<File> file_;
  size_t left_out_ = 0;  // bytes dropped since the last that were given to the thread
};

// supervisor::OutputFrame::stream of a progress descriptor.
inline constexpr uint8_t kProgressStream = 3;

class WorkerOutputs {
 public:
  WorkerOutputs(const OutputOptions& options, Display& display);

  // Writes filtered lines to files in this directory from now on; empty: to none.
  void OpenFiltered(const std::string& directory);
  // Removes all workers but these.
  void KeepOnly(const std::set<uint32_t>& kept);
  // Sets the prefix for the worker's further output.
  void Begin(const PrefixFields& of);

  // Displays the lines that the frame completes, and the rows that are being overwritten. Lines of
  // the progress descriptor are returned instead.
  std::string Add(uint32_t local_rank, const supervisor::OutputFrame& frame);
  // Displays an unfinished last line.
  void Flush(uint32_t local_rank);
  void FlushAll();

 private:
  // The standard output or error of a worker.
  struct Stream {
    bool drawn = false;  // whether rows that are overwritten are drawn
    LineAssembler lines;
    TerminalRows rows;
  };
  struct Streams {
    Stream standard_output;
    Stream standard_error;
    LineAssembler progress;
    bool has_rows = false;  // the display has been given rows
  };

  Stream StreamOf(const std::string& prefix, bool to_stderr) const;
  void Show(const std::string& lines, Stream& from, bool to_stderr);
  void ShowRows(uint32_t local_rank, Streams& streams);
  void Flush(uint32_t local_rank, Streams& streams);
  // Ends the unfinished line of `unfinished_`, because other text follows.
  void EndUnfinishedLine();

  const std::string prefix_template_;
  Display& display_;
  FilteredLines filtered_stdout_;
  FilteredLines filtered_stderr_;
  std::map<uint32_t, Streams> streams_;  // by local rank
  // The stream whose last line was output without its newline; null: there is none.
  Stream* unfinished_ = nullptr;
  bool unfinished_to_stderr_ = false;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_WORKER_OUTPUTS_H_
