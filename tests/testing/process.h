// A child process under test, whose output is read line by line with deadlines. One thread uses an
// object.
#ifndef CADRE_TESTS_TESTING_PROCESS_H_
#define CADRE_TESTS_TESTING_PROCESS_H_

#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace cadre {

struct ProcessOptions {
  std::vector<std::string> argv;
  // These are added to this process's environment and override it; an empty value removes the
  // variable.
  std::map<std::string, std::string> env;
  std::string working_dir;
  // Runs the process on a terminal of 80 columns instead of pipes; both streams then arrive as
  // standard output.
  bool terminal = false;
};

class Process {
 public:
  static absl::StatusOr<std::unique_ptr<Process>> Start(const ProcessOptions& options);
  // Sends SIGKILL if the process still runs.
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  // Sends the signal; does nothing if the process has been waited for.
  void Kill(int signal);
  // Sends bytes to the process as if typed on the keyboard (terminal only).
  void Type(absl::string_view bytes);
  // Changes the terminal's size; its programs receive SIGWINCH.
  void Resize(int rows, int columns);
  // Reads the next output. Returns false if the output is closed.
  bool ReadMore(absl::Duration timeout = absl::Seconds(20));

  // Returns the first line (of either stream) that contains `text`, searching from where the last
  // call of WaitForLine stopped; nullopt if the output was closed or `timeout` passed first.
  std::optional<std::string> WaitForLine(absl::string_view text,
                                         absl::Duration timeout = absl::Seconds(20));
  // As above, until `text` was found `count` times; returns the lines that were found.
  std::vector<std::string> WaitForLines(absl::string_view text, size_t count,
                                        absl::Duration timeout = absl::Seconds(20));

  // Returns the exit status as a shell does (128 + signal), or nullopt if it still runs after
  // `timeout`.
  std::optional<int> Wait(absl::Duration timeout = absl::Seconds(20));

  // All output that was read so far.
  const std::string& standard_output() const { return streams_[0].all; }
  const std::string& standard_error() const { return streams_[1].all; }

 private:
  struct Stream {
    int fd = -1;
    std::string all;
    std::string partial;
  };

  Process() = default;
  // Reads what is available, waiting until `deadline` for the first byte; false if both are closed.
  bool ReadSome(absl::Time deadline);
  void TakeLines(Stream& stream, absl::string_view bytes);

  pid_t pid_ = -1;
  int pidfd_ = -1;
  std::optional<int> status_;
  Stream streams_[2];
  std::vector<std::string> lines_;  // of both streams, in order of arrival
  size_t next_line_ = 0;
};

// Starts the process, waits, and returns the finished process; Wait() returns its exit status.
absl::StatusOr<std::unique_ptr<Process>> RunToEnd(const ProcessOptions& options,
                                                  absl::Duration timeout = absl::Seconds(60));

// Returns the output of both streams, for messages of failed assertions.
std::string OutputOf(const Process& process);

// Whether a process (not a zombie) with this id exists.
bool IsAlive(pid_t pid);
// Waits until no such process exists; returns false after `timeout`.
bool WaitGone(pid_t pid, absl::Duration timeout);

// Returns a TCP port on loopback that was free a moment ago.
int FreePort();

// Returns a new empty directory under TEST_TMPDIR or /tmp.
std::string MakeTempDir(absl::string_view prefix);

std::string ReadFileOrEmpty(const std::string& path);

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_PROCESS_H_
