// What a new worker's process is connected to: its log files, and pipes for what it says.
// Supervisor's thread only.
#ifndef CADRE_AGENT_SUPERVISOR_OUTPUT_PLUMBING_H_
#define CADRE_AGENT_SUPERVISOR_OUTPUT_PLUMBING_H_

#include <atomic>
#include <memory>

#include "absl/time/time.h"
#include "agent/supervisor/frames.h"
#include "agent/supervisor/output/log_file.h"
#include "agent/supervisor/output/stdio.h"
#include "base/threads/file_thread.h"
#include "base/time.h"

namespace cadre::supervisor {

// How long a start waits for its files. It goes on without them then: what is said there waits, up
// to a bound, until the file system answers.
inline constexpr absl::Duration kFilesLimit = absl::Seconds(2);

struct Plumbing {
  std::unique_ptr<LogFile> stdout_log;
  std::unique_ptr<LogFile> stderr_log;
  WorkerPipe standard_output;
  WorkerPipe standard_error;
  WorkerPipe progress;
};

// A start whose files the file thread makes.
struct ComingStart {
  // The file thread's until `done`.
  struct Files {
    std::atomic<bool> done{false};
    std::atomic<bool> given_up{false};  // nobody waits any more
    const char* failed = nullptr;       // the step
    int error = 0;
  };
  StartFrame start;
  Plumbing plumbing;
  std::shared_ptr<Files> files;
  MonoTime until = MonoTime::Never();
};

// Begins with the start's log files, and with the removal of an earlier worker's error file.
std::unique_ptr<ComingStart> PrepareFiles(FileThread& files, const StartFrame& start, MonoTime now);

// False: errno says why.
bool LayPipes(Plumbing& plumbing);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_OUTPUT_PLUMBING_H_
