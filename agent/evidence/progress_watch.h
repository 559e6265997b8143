// How far the workers of this node are, from all that a program may use to tell: lines on its
// progress descriptor, the page that the worker runtime writes, a file that it touches, its output.
// Looked at from time to time; reads a few small files of the agent's own directory. Log files,
// which may be another machine's, are looked at by a file thread. One thread, the daemon's loop.
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
#include "base/progress_snapshot.h"
#include "base/threads/file_thread.h"
#include "base/time.h"

namespace cadre::agent {

class ProgressWatch {
 public:
  struct Worker {
    uint32_t local_rank = 0;
    uint32_t rank = 0;
    // The log files of output that does not come as frames, whose growth shows that the worker
    // writes. None where no timeout asks for that.
    std::vector<std::string> output_files;
    // A program may touch this file to show that it lives.
    std::string progress_file;
  };

  // `files` reads the sizes of log files, after whatever it was given to do before.
  explicit ProgressWatch(FileThread& files) : files_(files) {}

  // Forgets what was there. `directory` holds pages.
  void Start(std::string directory, uint64_t generation, std::vector<Worker> workers);

  // A whole line from the progress descriptor; one without any figure is a sign of life.
  std::vector<AgentEvent> OnLine(uint32_t local_rank, absl::string_view line, MonoTime now);
  // Events for all that has changed since the last call, and for output that the file thread found
  // since then. While the file thread does not answer, every worker counts as one that writes: it
  // may, and cannot show it.
  std::vector<AgentEvent> Poll(MonoTime now);

  // The newest report of each worker that made any, by local rank.
  std::vector<v1::Progress> Newest() const;

 private:
  struct Watched {
    Worker worker;
    std::optional<v1::Progress> progress;
    MonoTime page_since;
    int64_t page_step = -1;
    int64_t touched_ns = -1;    // modification time of the progress file
    int64_t output_bytes = -1;  // not known yet
  };
  // One reading of the sizes of all log files. It belongs to the file thread until `done`.
  struct OutputLook;

  void PollPage(Watched& watched, MonoTime now, std::vector<AgentEvent>& events);
  void PollFile(Watched& watched, MonoTime now, std::vector<AgentEvent>& events);
  void PollOutput(MonoTime now, std::vector<AgentEvent>& events);
  void LookAtOutput(MonoTime now);

  FileThread& files_;
  std::string directory_;
  uint64_t generation_ = 0;
  std::map<uint32_t, Watched> workers_;
  std::shared_ptr<OutputLook> look_;  // null: none has begun in this generation
  MonoTime look_began_;
  // A line has said a step, in this generation or an earlier one: the program counts them itself,
  // and what the pages count, from each generation's beginning, is something else.
  bool lines_have_steps_ = false;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_EVIDENCE_PROGRESS_WATCH_H_
