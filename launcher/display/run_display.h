// The output of `cadre run`: on a terminal one live block below the workers' output, in a pipe
// plain lines. One thread, the agent's loop, which it never blocks.
#ifndef CADRE_LAUNCHER_DISPLAY_RUN_DISPLAY_H_
#define CADRE_LAUNCHER_DISPLAY_RUN_DISPLAY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "agent/display.h"
#include "launcher/display/output_writer.h"
#include "launcher/display/status_text.h"
#include "proto/job.pb.h"
#include "proto/spec.pb.h"

namespace cadre::launcher {

struct RunDisplayOptions {
  // Draw the live block on standard error.
  bool live = false;
  // Whether this job is in the terminal's foreground. A background job of a shell only writes lines
  // and leaves the cursor at the shell's prompt.
  std::function<bool()> in_foreground = [] { return true; };
  // Workers' standard output goes to the same terminal as the block.
  bool output_shares_terminal = false;
  // Standard output and error are one pipe, file or terminal.
  bool one_destination = false;
  bool color = false;
  // Print the verdict as JSON on standard output.
  bool json = false;
  // Print the timeline, also on success.
  bool timeline = false;
  std::string log_dir;
  v1::NodeRange nodes;
};

// From the terminal, TERM, NO_COLOR and COLUMNS.
RunDisplayOptions DetectTerminal(bool no_progress);

// The most rows of progress bars that are drawn, if they fit on the terminal. If there are more,
// the first worker's rows are drawn.
inline constexpr size_t kCurrentRows = 8;

class RunDisplay : public agent::Display {
 public:
  RunDisplay(RunDisplayOptions options, OutputWriter& writer);

  void WorkerLines(const std::string& lines, bool to_stderr) override;
  bool DrawsCurrentRows(bool to_stderr) const override {
    return options_.live && options_.in_foreground() &&
           (to_stderr || options_.output_shares_terminal);
  }
  void CurrentRows(uint32_t local_rank, std::vector<std::string> rows) override;
  bool TakesLines() override { return writer_.HasRoom(); }
  void Line(const std::string& line) override;
  void Status(const v1::JobStatus& status, const std::vector<v1::Progress>& progress) override;
  void Finish(const agent::Exit& exit) override;

 private:
  // Whether the block is drawn now.
  bool DrawsBlock();
  std::string Erase();
  std::string Draw();
  // The rows that workers overwrite (progress bars), as far as they are drawn.
  std::vector<std::string> Rows(size_t columns, size_t most) const;
  // If a text would be written into an unfinished line of a worker, ends that line with a marker
  // first.
  void EndUnfinishedLine(bool to_stderr);

  const RunDisplayOptions options_;
  OutputWriter& writer_;
  std::vector<std::string> block_;
  // The columns of each line of the block that is on the terminal.
  std::vector<size_t> drawn_;
  // Whether standard output, and standard error, end with an unfinished line of a worker.
  bool unfinished_[2] = {};
  StatusLines plain_;
  Pace pace_;
  std::map<uint32_t, std::vector<std::string>> current_;  // by local rank
};

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_DISPLAY_RUN_DISPLAY_H_
