// The terminal of `cadre run`: on a terminal one live block below the workers' output, in a
// pipe plain lines. One thread, the agent's loop; never makes it wait.
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
#include "launcher/display/status_block.h"
#include "proto/job.pb.h"
#include "proto/spec.pb.h"

namespace cadre::launcher {

struct RunDisplayOptions {
  // Draw the live block on standard error.
  bool live = false;
  // Whether the terminal is this job's now. One in the background, as shells have it, writes lines
  // alone and leaves the cursor where the shell's prompt is.
  std::function<bool()> in_foreground = [] { return true; };
  // Workers' standard output goes to the same terminal as the block.
  bool output_shares_terminal = false;
  // Standard output and error are one pipe, file or terminal.
  bool one_destination = false;
  bool color = false;
  // The verdict as JSON on standard output.
  bool json = false;
  // Where the time went, also on success.
  bool timeline = false;
  std::string log_dir;
  v1::NodeRange nodes;
};

// From the terminal, TERM, NO_COLOR and COLUMNS.
RunDisplayOptions DetectTerminal(bool no_progress);

// So many rows of progress bars are drawn, and no more than the terminal has room for; of more
// those of the first worker.
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
  bool Live();
  std::string Erase();
  std::string Draw();
  // What is drawn of the rows that workers overwrite.
  std::vector<std::string> Rows(size_t columns, size_t most) const;
  // Ends, in words, a line of a worker that has no end yet where this would be written into it.
  void EndUnfinishedLine(bool to_stderr);

  const RunDisplayOptions options_;
  OutputWriter& writer_;
  std::vector<std::string> block_;
  // The columns of each line of the block that is on the terminal.
  std::vector<size_t> drawn_;
  // Standard output and error have a line of a worker that has no end yet.
  bool unfinished_[2] = {};
  StatusLines plain_;
  Pace pace_;
  std::map<uint32_t, std::vector<std::string>> current_;  // by local rank
};

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_DISPLAY_RUN_DISPLAY_H_
