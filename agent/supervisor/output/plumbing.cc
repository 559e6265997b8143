#include "agent/supervisor/output/plumbing.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/supervisor/output/complaints.h"
#include "base/disk_full.h"

namespace cadre::supervisor {
namespace {

// 0, or why not.
int PrepareErrorFile(const std::string& path) {
  if (path.empty()) return 0;
  const absl::Status made = MakeDirectoriesFor(path);
  if (!made.ok()) {
    const int error = errno;
    if (IsDiskFull(error)) return 0;
    if (error == EPERM) Complain(made.message());
    return error;
  }
  return unlink(path.c_str()) == 0 || errno == ENOENT ? 0 : errno;
}

// On the file thread.
void Prepare(const std::vector<std::shared_ptr<LogFile::File>>& logs, const std::string& error_file,
             ComingStart::Files& files) {
  for (const auto& log : logs) {
    if (files.error != 0) break;
    files.failed = "open log";
    files.error = OpenFile(*log);
  }
  if (files.error == 0) {
    files.failed = "error file";
    files.error = PrepareErrorFile(error_file);
  }
  if (files.error != 0 && files.given_up) {
    Complain(absl::StrCat("the files beside ", error_file, " cannot be made: ",
                          strerror(files.error), "; the worker runs without them"));
  }
  files.done = true;
}

std::unique_ptr<LogFile> LogAt(FileThread& files, const std::string& path) {
  return path.empty() ? nullptr : std::make_unique<LogFile>(files, path);
}

}  // namespace

std::unique_ptr<ComingStart> PrepareFiles(FileThread& files, const StartFrame& start,
                                          MonoTime now) {
  auto coming = std::make_unique<ComingStart>();
  coming->start = start;
  coming->files = std::make_shared<ComingStart::Files>();
  coming->plumbing.stdout_log = LogAt(files, start.stdout_path);
  coming->plumbing.stderr_log = LogAt(files, start.stderr_path);
  std::vector<std::shared_ptr<LogFile::File>> logs;
  for (const auto* log : {&coming->plumbing.stdout_log, &coming->plumbing.stderr_log}) {
    if (*log != nullptr) logs.push_back((*log)->file());
  }
  if (logs.empty() && start.error_file.empty()) {
    coming->files->done = true;
    return coming;
  }
  coming->until = files.StandsStill(now) ? now : now + kFilesLimit;
  files.Post([logs = std::move(logs), error_file = start.error_file,
              made = coming->files] { Prepare(logs, error_file, *made); },
             0, true);
  return coming;
}

bool LayPipes(Plumbing& plumbing) {
  for (WorkerPipe* pipe :
       {&plumbing.standard_output, &plumbing.standard_error, &plumbing.progress}) {
    *pipe = MakeWorkerPipe();
    if (!pipe->read_end.ok()) return false;
  }
  return true;
}

}  // namespace cadre::supervisor
