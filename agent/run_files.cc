#include "agent/run_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <google/protobuf/util/json_util.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log_paths.h"
#include "base/own_files.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"
#include "base/token.h"
#include "nlohmann/json.hpp"

namespace cadre::agent {
namespace {

namespace fs = std::filesystem;

// The directory's name if it is a run's directory, else empty.
std::string RunName(const fs::path& directory) {
  const std::string name = directory.filename().string();
  return absl::StartsWith(name, kRunPrefix) ? name : "";
}

absl::StatusOr<std::string> ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  // Zero values such as rank 0 and status 0 are written too, for readers of the file.
  options.always_print_primitive_fields = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) {
    return absl::InternalError(absl::StrCat("cannot write ", message.GetTypeName(), " as JSON"));
  }
  return json;
}

// A temporary name beside `name`, random because several launchers of one job may share the
// directory, and those in containers may have the same pids.
std::string TemporaryName(const std::string& name, absl::string_view what_for) {
  return absl::StrCat(name, ".", RandomToken().substr(0, 16), what_for);
}

std::string ParentOf(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

// Opens the directory of a run. Directories above the job's may belong to any user.
absl::StatusOr<ScopedFd> OpenRun(const std::string& run_directory) {
  const fs::path run(run_directory);
  const fs::path job = RunName(run).empty() ? run : run.parent_path();
  return MakeOwnDirectory(ParentOf(job), (job.filename() / run.lexically_relative(job)).string());
}

// Returns the target of the symbolic link; empty: it is not a link.
std::string ReadLink(int directory, const std::string& name) {
  char target[4096];
  const ssize_t size = readlinkat(directory, name.c_str(), target, sizeof(target));
  return size < 0 ? "" : std::string(target, static_cast<size_t>(size));
}

absl::Status WriteAll(int fd, absl::string_view content) {
  while (!content.empty()) {
    const ssize_t written = write(fd, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return absl::ErrnoToStatus(errno, "write");
    content.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

}  // namespace

std::string RunDirectory(const std::string& log_dir, const std::string& job,
                         const std::string& run) {
  return absl::StrCat(log_dir, "/", RunSubdirectory(job, run));
}

std::string RankDirectory(const std::string& run_directory, uint64_t generation, uint32_t rank) {
  return absl::StrCat(run_directory, "/", RankSubdirectory(generation, rank));
}

absl::Status LinkToRun(const std::string& run_directory, const std::string& name) {
  const fs::path run(run_directory);
  const std::string run_name = RunName(run);
  if (run_name.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const ScopedFd job, OpenOwnDirectory(ParentOf(run_directory)));
  const std::string target = absl::StrCat(run_name, "/", name);
  if (ReadLink(job.get(), name) == target) return absl::OkStatus();
  // In most cases there is no link of this name yet.
  if (symlinkat(target.c_str(), job.get(), name.c_str()) == 0) return absl::OkStatus();
  const std::string temporary = TemporaryName(name, ".link");
  if (symlinkat(target.c_str(), job.get(), temporary.c_str()) == 0 &&
      renameat(job.get(), temporary.c_str(), job.get(), name.c_str()) == 0) {
    return absl::OkStatus();
  }
  const absl::Status status = absl::ErrnoToStatus(
      errno, absl::StrCat("cannot link ", ParentOf(run_directory), "/", name, " to ", target));
  unlinkat(job.get(), temporary.c_str(), 0);
  return status;
}

void UnlinkOtherRuns(const std::string& run_directory) {
  const std::string run_name = RunName(run_directory);
  if (run_name.empty()) return;
  absl::StatusOr<ScopedFd> job = OpenOwnDirectory(ParentOf(run_directory));
  if (!job.ok()) return;
  const int fd = job->get();
  DIR* const entries = fdopendir(job->Release());
  if (entries == nullptr) return;
  std::vector<std::string> others;
  while (const dirent* const entry = readdir(entries)) {
    const fs::path target = ReadLink(fd, entry->d_name);
    if (target.filename() != entry->d_name ||
        !absl::StartsWith(target.filename().string(), kGenerationPrefix)) {
      continue;
    }
    const std::string to = target.parent_path().string();
    if (to != run_name && !RunName(to).empty()) others.emplace_back(entry->d_name);
  }
  for (const std::string& other : others) unlinkat(fd, other.c_str(), 0);
  closedir(entries);
}

absl::Status MakeRunDirectory(const std::string& log_dir, const std::string& below,
                              int* error_number) {
  const absl::Status status = MakeOwnDirectory(log_dir, below).status();
  if (!status.ok() && error_number != nullptr) *error_number = errno;
  return status;
}

absl::Status LinkDirectory(const std::string& path, const std::string& to) {
  std::error_code error;
  const auto from = fs::absolute(path, error).lexically_normal();
  const auto target =
      fs::absolute(to, error).lexically_normal().lexically_relative(from.parent_path());
  ASSIGN_OR_RETURN(const ScopedFd parent, OpenOwnDirectory(from.parent_path()));
  if (unlinkat(parent.get(), from.filename().c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT) {
    return absl::FailedPreconditionError(absl::StrCat("cannot replace ", path));
  }
  if (symlinkat(target.c_str(), parent.get(), from.filename().c_str()) == 0) {
    return absl::OkStatus();
  }
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot link ", path));
}

namespace {

// Writes the file into an open directory; `path` is for messages only.
absl::Status WriteFileIn(int directory, const std::string& path, absl::string_view content) {
  const std::string name = fs::path(path).filename().string();
  const std::string temporary = TemporaryName(name, ".part");
  const int fd = openat(directory, temporary.c_str(),
                        O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  absl::Status status = WriteAll(fd, content);
  if (close(fd) != 0 && status.ok()) status = absl::ErrnoToStatus(errno, "close");
  if (status.ok() && renameat(directory, temporary.c_str(), directory, name.c_str()) != 0) {
    status = absl::ErrnoToStatus(errno, "rename");
  }
  if (status.ok()) return status;
  unlinkat(directory, temporary.c_str(), 0);
  return absl::Status(status.code(), absl::StrCat("cannot write ", path, ": ", status.message()));
}

}  // namespace

absl::Status WriteFile(const std::string& path, absl::string_view content) {
  ASSIGN_OR_RETURN(const ScopedFd directory, OpenOwnDirectory(ParentOf(path)));
  return WriteFileIn(directory.get(), path, content);
}

absl::Status WriteFileAnywhere(const std::string& path, absl::string_view content) {
  const ScopedFd directory(open(ParentOf(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.ok()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  return WriteFileIn(directory.get(), path, content);
}

absl::Status WriteVerdictFile(const std::string& path, const v1::Verdict& verdict) {
  ASSIGN_OR_RETURN(const std::string json, ToJson(verdict));
  return WriteFile(path, json);
}

absl::Status WriteVerdict(const std::string& run_directory, const v1::Verdict& verdict,
                          const v1::Timeline& timeline) {
  ASSIGN_OR_RETURN(const ScopedFd run, OpenRun(run_directory));
  ASSIGN_OR_RETURN(const std::string verdict_json, ToJson(verdict));
  ASSIGN_OR_RETURN(const std::string timeline_json, ToJson(timeline));
  RETURN_IF_ERROR(
      WriteFileIn(run.get(), absl::StrCat(run_directory, "/verdict.json"), verdict_json));
  RETURN_IF_ERROR(
      WriteFileIn(run.get(), absl::StrCat(run_directory, "/timeline.json"), timeline_json));
  RETURN_IF_ERROR(LinkToRun(run_directory, "verdict.json"));
  return LinkToRun(run_directory, "timeline.json");
}

absl::Status RemoveVerdict(const std::string& directory) {
  const absl::StatusOr<ScopedFd> opened = OpenOwnDirectory(directory);
  if (!opened.ok()) {
    return errno == ENOENT || errno == ENOTDIR ? absl::OkStatus() : opened.status();
  }
  for (const char* name : {"verdict.json", "timeline.json"}) {
    if (unlinkat(opened->get(), name, 0) != 0 && errno != ENOENT) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot remove ", directory, "/", name));
    }
  }
  return absl::OkStatus();
}

std::string VerdictMark(const std::string& log_dir, const std::string& job) {
  struct stat found;
  if (stat(absl::StrCat(log_dir, "/", job, "/verdict.json").c_str(), &found) != 0) return "";
  return absl::StrCat(found.st_ino, ".", found.st_mtim.tv_sec, ".", found.st_mtim.tv_nsec);
}

std::string WithErrorCode(const std::string& error_json, const v1::WorkerExit& exit) {
  const int code = exit.signal() != 0 ? -exit.signal() : exit.exit_code();
  if (code == 0) return error_json;
  nlohmann::json parsed = nlohmann::json::parse(error_json, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object() || !parsed.contains("message") || !parsed["message"].is_object()) {
    return error_json;
  }
  parsed["message"]["errorCode"] = code;
  // dump would throw on invalid UTF-8.
  return parsed.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace cadre::agent
