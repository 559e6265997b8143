// A worker's log file, which no file system keeps anybody waiting for: what it does not take in
// time is left out up to a bound, counted, and marked in the file where it goes on. Beside it is
// when what was written (base/log_paths.h). Supervisor's thread; the file is the file thread's.
#ifndef CADRE_AGENT_SUPERVISOR_OUTPUT_LOG_FILE_H_
#define CADRE_AGENT_SUPERVISOR_OUTPUT_LOG_FILE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/threads/file_thread.h"

namespace cadre::supervisor {

// For the file thread alone. Makes the directories above `path`, the last of which is this user's
// own (base/own_files.h). errno says why not as well.
absl::Status MakeDirectoriesFor(const std::string& path);

class LogFile {
 public:
  // For the file thread alone.
  struct File;

  LogFile(FileThread& files, std::string path);
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  // Opened in its turn, by Open or by whoever posts a task that calls OpenFile.
  void Open();
  std::shared_ptr<File> file() const { return file_; }

  void Append(absl::string_view bytes);
  // Goes on at another path, with what was written so far where the file can be moved.
  void MoveTo(std::string path);
  // Says what the file lacks.
  void Finish();

  const std::string& path() const { return path_; }

 private:
  FileThread& files_;
  std::string path_;
  const std::shared_ptr<File> file_;
  uint64_t skipped_ = 0;  // bytes since the last that were given to the file thread
};

// On the file thread. 0, or the errno of what failed; a full disk is said, and is no failure.
int OpenFile(LogFile::File& file);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_OUTPUT_LOG_FILE_H_
