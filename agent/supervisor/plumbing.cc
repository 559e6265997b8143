#include "agent/supervisor/plumbing.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "base/disk_full.h"

namespace cadre::supervisor {
namespace {

bool PrepareErrorFile(const std::string& path) {
  if (path.empty()) return true;
  if (!MakeDirectoriesFor(path)) return IsDiskFull(errno);
  return unlink(path.c_str()) == 0 || errno == ENOENT;
}

}  // namespace

bool OpenLog(const std::string& path, ScopedFd& file) {
  if (path.empty()) return true;
  if (MakeDirectoriesFor(path)) {
    file.Reset(open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666));
  }
  if (file.ok()) return true;
  if (!IsDiskFull(errno)) return false;
  Complain(absl::StrCat("cannot make ", path, ": ", strerror(errno),
                        "; the worker runs, and its output is not kept"));
  return true;
}

const char* LayPlumbing(const StartFrame& start, Plumbing& plumbing) {
  if (!OpenLog(start.stdout_path, plumbing.stdout_file)) return "open log";
  if (!OpenLog(start.stderr_path, plumbing.stderr_file)) return "open log";
  if (!PrepareErrorFile(start.error_file)) return "error file";
  for (WorkerPipe* pipe :
       {&plumbing.standard_output, &plumbing.standard_error, &plumbing.progress}) {
    *pipe = MakeWorkerPipe();
    if (!pipe->read_end.ok()) return "pipe";
  }
  return nullptr;
}

}  // namespace cadre::supervisor
