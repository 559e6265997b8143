// The standard output and error of this node's workers on the terminal: as whole lines, each with
// its worker's prefix, and once more in a file where the user's filters say so. Also the lines on
// their progress descriptors. Used by one thread.
#ifndef CADRE_AGENT_WORKERS_WORKER_OUTPUTS_H_
#define CADRE_AGENT_WORKERS_WORKER_OUTPUTS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "agent/display.h"
#include "agent/supervisor/frames.h"
#include "agent/workers/filtered_lines.h"
#include "agent/workers/live_rows.h"
#include "agent/workers/output_options.h"
#include "agent/workers/rank_output.h"

namespace cadre::agent {

// supervisor::OutputFrame::stream of a progress descriptor.
inline constexpr uint8_t kProgressStream = 3;

class WorkerOutputs {
 public:
  WorkerOutputs(const OutputOptions& options, Display& display);

  // Filtered lines go to files in this directory from now on; empty: to none.
  void OpenFiltered(const std::string& directory);
  // Forgets all workers but these.
  void KeepOnly(const std::set<uint32_t>& kept);
  // What the worker writes from now on has its prefix.
  void Begin(const PrefixFields& of);

  // Shows the lines that this completes, and the rows that are being overwritten; of the progress
  // descriptor's, returns them.
  std::string Add(uint32_t local_rank, const supervisor::OutputFrame& frame);
  // A last line may have no end.
  void Flush(uint32_t local_rank);
  void FlushAll();

 private:
  // Standard output or error of a worker.
  struct Stream {
    bool drawn = false;  // what is overwritten is shown as rows
    LineAssembler lines;
    LiveRows rows;
  };
  struct Streams {
    Stream standard_output;
    Stream standard_error;
    LineAssembler progress;
    bool has_rows = false;  // the display was given some
  };

  Stream StreamOf(const std::string& prefix, bool to_stderr) const;
  void Show(const std::string& lines, Stream& from, bool to_stderr);
  void ShowRows(uint32_t local_rank, Streams& streams);
  void Flush(uint32_t local_rank, Streams& streams);
  // Of the stream whose line has come out without its end.
  void EndUnfinishedLine();

  const std::string prefix_template_;
  Display& display_;
  FilteredLines filtered_stdout_;
  FilteredLines filtered_stderr_;
  std::map<uint32_t, Streams> streams_;  // by local rank
  // Whose line has come out without its end; null: nobody's.
  Stream* unfinished_ = nullptr;
  bool unfinished_to_stderr_ = false;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_WORKER_OUTPUTS_H_
