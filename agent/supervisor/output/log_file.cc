#include "agent/supervisor/output/log_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/supervisor/output/complaints.h"
#include "base/clock.h"
#include "base/disk_full.h"
#include "base/log_paths.h"
#include "base/own_files.h"
#include "base/scoped_fd.h"

namespace cadre::supervisor {
namespace {

// One gap is better than many: after it there must be this much more room.
constexpr size_t kRoomToGoOn = 4 << 20;

}  // namespace

// Its descriptor is the file thread's: it is closed there, or never.
struct LogFile::File {
  std::string path;
  int fd = -1;
  uint64_t lost = 0;  // bytes since the last that could be written
  uint64_t lost_in_all = 0;
  bool said_removed = false;
  int times_fd = -1;
  bool no_times = false;  // they cannot be kept
  int64_t noted_ms = 0;   // the last of them

  int Open();
  // What is written next came at `now_ms`.
  void Note(int64_t now_ms);
  // How much of it; errno says why not all.
  size_t Write(absl::string_view bytes) const;
  void Append(uint64_t skipped, absl::string_view bytes, int64_t now_ms);
  void MoveTo(const std::string& to);
  void Finish();
  void Close();
};

absl::Status MakeDirectoriesFor(const std::string& path) {
  const size_t end = path.rfind('/');
  if (end == std::string::npos || end == 0) return absl::OkStatus();
  return MakeOwnDirectory(path.substr(0, end), "").status();
}

int LogFile::File::Open() {
  absl::Status status = MakeDirectoriesFor(path);
  if (status.ok()) {
    absl::StatusOr<ScopedFd> file = OpenOwnFile(path, O_WRONLY | O_APPEND | O_CREAT);
    if (file.ok()) {
      fd = file->Release();
      return 0;
    }
    status = file.status();
  }
  const int error = errno;
  if (!IsDiskFull(error)) {
    // What stands in its place, and what to do, which no number says.
    if (error == EPERM || error == EINVAL) Complain(status.message());
    return error;
  }
  Complain(absl::StrCat("cannot make ", path, ": ", strerror(error),
                        "; the worker runs, and its output is not kept"));
  return 0;
}

size_t LogFile::File::Write(absl::string_view bytes) const {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = write(fd, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

void LogFile::File::Note(int64_t now_ms) {
  // A clock that was set back begins anew.
  const bool noted = now_ms >= noted_ms && now_ms < noted_ms + kLogTimeStepMs;
  if (noted || no_times) return;
  noted_ms = now_ms;
  const off_t at = lseek(fd, 0, SEEK_END);
  // A FIFO has no places.
  no_times = at < 0;
  if (times_fd < 0 && !no_times) {
    times_fd = open(LogTimesPath(path).c_str(),
                    O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
    no_times = times_fd < 0;
  }
  if (no_times) return;
  const std::string line = absl::StrCat(now_ms, " ", at, "\n");
  // Without it the log is less easily read, and whole.
  [[maybe_unused]] const ssize_t n = write(times_fd, line.data(), line.size());
}

void LogFile::File::Append(uint64_t skipped, absl::string_view bytes, int64_t now_ms) {
  lost += skipped;
  lost_in_all += skipped;
  if (fd < 0) return;
  if (!bytes.empty()) Note(now_ms);
  if (lost > 0) {
    // Where there is room again the gap is marked.
    const std::string mark = absl::StrCat("\n[", lost, " bytes are missing here]\n");
    if (Write(mark) == mark.size()) lost = 0;
  }
  const size_t done = lost == 0 ? Write(bytes) : 0;
  if (done == bytes.size()) return;
  if (lost_in_all == 0) {
    Complain(absl::StrCat("cannot write ", path, ": ", strerror(errno),
                          "; the worker goes on, its output there is incomplete"));
  }
  lost += bytes.size() - done;
  lost_in_all += bytes.size() - done;
}

void LogFile::File::MoveTo(const std::string& to) {
  MakeDirectoriesFor(to).IgnoreError();
  const bool moved =
      fd >= 0 && access(to.c_str(), F_OK) != 0 && rename(path.c_str(), to.c_str()) == 0;
  if (moved) rename(LogTimesPath(path).c_str(), LogTimesPath(to).c_str());
  const int before = fd;
  const std::string from = std::exchange(path, to);
  if (moved) return;
  fd = -1;
  if (Open() == 0 && fd >= 0) {
    if (before >= 0) close(before);
    if (times_fd >= 0) close(times_fd);
    times_fd = -1;
    noted_ms = 0;
    return;
  }
  // Where neither can be it goes on where it was.
  fd = before;
  path = from;
}

void LogFile::File::Finish() {
  if (const uint64_t count = std::exchange(lost_in_all, 0); count > 0) {
    Complain(absl::StrCat(path, " lacks ", count, " bytes of what the worker wrote"));
  }
  struct stat info;
  if (fd < 0 || said_removed || fstat(fd, &info) != 0) return;
  if (info.st_nlink != 0 || info.st_size == 0) return;
  said_removed = true;
  Complain(
      absl::StrCat(path, " was removed while the worker ran, and what it wrote there with it"));
}

void LogFile::File::Close() {
  for (const int open : {fd, times_fd}) {
    if (open >= 0) close(open);
  }
}

int OpenFile(LogFile::File& file) { return file.Open(); }

LogFile::LogFile(FileThread& files, std::string path)
    : files_(files), path_(std::move(path)), file_(std::make_shared<File>()) {
  file_->path = path_;
}

LogFile::~LogFile() {
  Finish();
  files_.Post([file = file_] { file->Close(); });
}

void LogFile::Open() {
  files_.Post([file = file_] { file->Open(); });
}

void LogFile::Append(absl::string_view bytes) {
  if (bytes.empty()) return;
  const size_t wanted = bytes.size() + (skipped_ > 0 ? kRoomToGoOn : 0);
  if (!files_.HasRoom(wanted) && files_.StandsStill(MonoNow())) {
    if (skipped_ == 0) {
      Complain(absl::StrCat("cannot write ", path_,
                            ": its file system does not answer; the worker goes on, its output "
                            "there is incomplete"));
    }
    skipped_ += bytes.size();
    return;
  }
  files_.Post([file = file_, skipped = std::exchange(skipped_, 0), text = std::string(bytes),
               now_ms = absl::ToUnixMillis(absl::Now())] { file->Append(skipped, text, now_ms); },
              bytes.size());
}

void LogFile::MoveTo(std::string path) {
  if (path.empty() || path == path_) return;
  path_ = std::move(path);
  files_.Post([file = file_, to = path_] { file->MoveTo(to); });
}

void LogFile::Finish() {
  files_.Post([file = file_, skipped = std::exchange(skipped_, 0)] {
    file->Append(skipped, "", 0);
    file->Finish();
  });
}

}  // namespace cadre::supervisor
