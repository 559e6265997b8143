// The progress of the workers of this node: what they write to their progress descriptors, and what
// else shows that they live. Used by one thread, the daemon's loop; a file thread reads the log
// files. When a worker counts as hanging is decided in agent/core/hang_watch.h.
#ifndef CADRE_AGENT_EVIDENCE_PROGRESS_WATCH_H_
#define CADRE_AGENT_EVIDENCE_PROGRESS_WATCH_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "agent/core/agent_core.h"
#include "base/threads/file_thread.h"
#include "base/time.h"
#include "proto/rendezvous.pb.h"

namespace cadre::agent {

// Parses what workers write to CADRE_PROGRESS_FD: lines of name=value words, such as
//   step=120 total=1000 samples_per_second=3400 loss=0.12 lr=0.001
// in any order. Any other name, such as lr here, is the program's own figure (rpc/job_progress.h).
struct ProgressLine {
  v1::Progress progress;
  bool has_step = false;
};

// Values that are not numbers are left out; nullopt if nothing is left. The step is optional;
// missing values are 0.
std::optional<ProgressLine> ParseProgressLine(absl::string_view line);

// Tracks the progress of the workers from all sources that a program may use: lines on its progress
// descriptor, the page that the worker runtime writes, a file that it touches, its output. Polled;
// reads a few small files in the agent's own directory. Log files, which may be on another machine,
// are read by a file thread.
class ProgressWatch {
 public:
  struct Worker {
    uint32_t local_rank = 0;
    uint32_t rank = 0;
    // The log files of output that does not come as frames, whose growth shows that the worker
    // writes. Empty if no timeout requires it.
    std::vector<std::string> output_files;
    // A program may touch this file as a sign of life.
    std::string progress_file;
  };

  // `files` reads the sizes of log files, after work that was posted to it earlier.
  explicit ProgressWatch(FileThread& files) : files_(files) {}

  // Starts to track these workers in place of earlier ones. `directory` holds the progress pages.
  void Start(std::string directory, uint64_t generation, std::vector<Worker> workers);

  // Takes a whole line from the progress descriptor; one without any figure is a sign of life.
  std::vector<AgentEvent> OnLine(uint32_t local_rank, absl::string_view line, MonoTime now);
  // Returns events for all changes since the last call, including output that the file thread has
  // found since. While the file thread does not answer, every worker counts as writing, because its
  // output cannot be observed.
  std::vector<AgentEvent> Poll(MonoTime now);

  // The newest report of each worker that has made any, by local rank.
  std::vector<v1::Progress> Newest() const;

 private:
  struct Watched {
    Worker worker;
    std::optional<v1::Progress> progress;
    MonoTime page_since;
    int64_t page_step = -1;
    int64_t touched_ns = -1;    // modification time of the progress file; -1: none
    int64_t output_bytes = -1;  // -1: not known yet
  };
  // One reading of the sizes of all log files. Owned by the file thread until `done`.
  struct OutputSizes;

  void PollPage(Watched& watched, MonoTime now, std::vector<AgentEvent>& events);
  void PollFile(Watched& watched, MonoTime now, std::vector<AgentEvent>& events);
  void PollOutput(MonoTime now, std::vector<AgentEvent>& events);
  void ReadOutputSizes(MonoTime now);

  FileThread& files_;
  std::string directory_;
  uint64_t generation_ = 0;
  std::map<uint32_t, Watched> workers_;
  std::shared_ptr<OutputSizes> output_sizes_;  // null: none was started in this generation
  MonoTime sizes_asked_at_;
  // A line has contained a step, in this generation or an earlier one: the program counts its steps
  // itself, so the pages' steps, counted from each generation's beginning, are ignored.
  bool lines_have_steps_ = false;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_EVIDENCE_PROGRESS_WATCH_H_
