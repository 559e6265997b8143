// A child process under test: its output line by line, with deadlines. One thread uses an object.
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
  // Added to (and winning over) this process's environment; an empty value removes the name.
  std::map<std::string, std::string> env;
  std::string working_dir;
  // A terminal of 80 columns instead of pipes; both streams then arrive as standard output.
  bool terminal = false;
};

class Process {
 public:
  static absl::StatusOr<std::unique_ptr<Process>> Start(const ProcessOptions& options);
  // Kills it with SIGKILL if it still runs.
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  // SIGKILL and friends; nothing happens to a process that has been waited for.
  void Kill(int signal);
  // Bytes to a terminal's keyboard (terminal only), as if typed.
  void Type(absl::string_view bytes);
  // The terminal has another size, of which its programs hear (SIGWINCH).
  void Resize(int rows, int columns);
  // Reads what comes next. False: the output is closed.
  bool ReadMore(absl::Duration timeout = absl::Seconds(20));

  // The first line (of either stream) that contains `text`, from where the last call of WaitForLine
  // stopped; nullopt when the process closed its output or `timeout` passed first.
  std::optional<std::string> WaitForLine(absl::string_view text,
                                         absl::Duration timeout = absl::Seconds(20));
  // As above, until it was found `count` times; the lines found.
  std::vector<std::string> WaitForLines(absl::string_view text, size_t count,
                                        absl::Duration timeout = absl::Seconds(20));

  // Exit status as a shell gives it (128 + signal); nullopt when it still runs after `timeout`.
  std::optional<int> Wait(absl::Duration timeout = absl::Seconds(20));

  // All that was read so far.
  const std::string& standard_output() const { return streams_[0].all; }
  const std::string& standard_error() const { return streams_[1].all; }

 private:
  struct Stream {
    int fd = -1;
    std::string all;
    std::string partial;
  };

  Process() = default;
  // Reads what is there, waiting until `deadline` for the first byte; false when both are closed.
  bool ReadSome(absl::Time deadline);
  void TakeLines(Stream& stream, absl::string_view bytes);

  pid_t pid_ = -1;
  int pidfd_ = -1;
  std::optional<int> status_;
  Stream streams_[2];
  std::vector<std::string> lines_;  // of both streams, in order of arrival
  size_t next_line_ = 0;
};

// Starts, waits and gives back the finished process; the exit status is Wait()'s.
absl::StatusOr<std::unique_ptr<Process>> RunToEnd(const ProcessOptions& options,
                                                  absl::Duration timeout = absl::Seconds(60));

// All that both streams said, for messages of failed assertions.
std::string Said(const Process& process);

// Is there a process (not a zombie) with this id?
bool IsAlive(pid_t pid);
// Waits until there is none.
bool WaitGone(pid_t pid, absl::Duration timeout);

// A TCP port on loopback that was free a moment ago.
int FreePort();

// A new empty directory under TEST_TMPDIR or /tmp.
std::string MakeTempDir(absl::string_view prefix);

std::string ReadFileOrEmpty(const std::string& path);

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_PROCESS_H_
