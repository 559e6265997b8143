#include "agent/run_files.h"

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
#include "base/status_macros.h"
#include "base/token.h"
#include "nlohmann/json.hpp"

namespace cadre::agent {
namespace {

namespace fs = std::filesystem;

// The name of the directory, where it is that of a run.
std::string RunName(const fs::path& directory) {
  const std::string name = directory.filename().string();
  return absl::StartsWith(name, kRunPrefix) ? name : "";
}

absl::StatusOr<std::string> ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  // A reader should find rank 0 and status 0 written out.
  options.always_print_primitive_fields = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) {
    return absl::InternalError(absl::StrCat("cannot write ", message.GetTypeName(), " as JSON"));
  }
  return json;
}

// Beside `path`. Several launchers of one job may share the directory, and those in containers have
// the same pids.
std::string TemporaryName(const std::string& path, absl::string_view what_for) {
  return absl::StrCat(path, ".", RandomToken().substr(0, 16), what_for);
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
  const std::string link = run.parent_path() / name;
  const std::string target = absl::StrCat(run_name, "/", name);
  std::error_code error;
  if (fs::read_symlink(link, error) == target) return absl::OkStatus();
  // Mostly the first of its name.
  if (symlink(target.c_str(), link.c_str()) == 0) return absl::OkStatus();
  const std::string temporary = TemporaryName(link, ".link");
  if (symlink(target.c_str(), temporary.c_str()) == 0 &&
      rename(temporary.c_str(), link.c_str()) == 0) {
    return absl::OkStatus();
  }
  const absl::Status status =
      absl::ErrnoToStatus(errno, absl::StrCat("cannot link ", link, " to ", target));
  unlink(temporary.c_str());
  return status;
}

void UnlinkOtherRuns(const std::string& run_directory) {
  const fs::path run(run_directory);
  const std::string run_name = RunName(run);
  if (run_name.empty()) return;
  std::vector<fs::path> others;
  std::error_code error;
  for (fs::directory_iterator at(run.parent_path(), error), end; !error && at != end;
       at.increment(error)) {
    std::error_code no_link;
    const fs::path target = fs::read_symlink(at->path(), no_link);
    if (no_link || target.filename() != at->path().filename() ||
        !absl::StartsWith(target.filename().string(), kGenerationPrefix)) {
      continue;
    }
    const std::string to = target.parent_path().string();
    if (to != run_name && !RunName(to).empty()) others.push_back(at->path());
  }
  for (const fs::path& other : others) fs::remove(other, error);
}

absl::Status MakeDirectories(const std::string& path, int* error_number) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!error) return absl::OkStatus();
  if (error_number != nullptr) *error_number = error.value();
  return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot make directory ", path));
}

absl::Status LinkDirectory(const std::string& path, const std::string& to) {
  std::error_code error;
  const auto from = fs::absolute(path, error).lexically_normal();
  const auto target =
      fs::absolute(to, error).lexically_normal().lexically_relative(from.parent_path());
  if (rmdir(from.c_str()) != 0 && errno != ENOENT) {
    return absl::FailedPreconditionError(absl::StrCat("cannot replace ", path));
  }
  fs::create_directory_symlink(target, from, error);
  if (!error) return absl::OkStatus();
  return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot link ", path));
}

absl::Status WriteFile(const std::string& path, absl::string_view content) {
  const std::string temporary = TemporaryName(path, ".part");
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", temporary));
  absl::Status status = WriteAll(fd, content);
  if (close(fd) != 0 && status.ok()) status = absl::ErrnoToStatus(errno, "close");
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0) {
    status = absl::ErrnoToStatus(errno, "rename");
  }
  if (status.ok()) return status;
  unlink(temporary.c_str());
  return absl::Status(status.code(), absl::StrCat("cannot write ", path, ": ", status.message()));
}

absl::Status WriteVerdict(const std::string& run_directory, const v1::Verdict& verdict,
                          const v1::Timeline& timeline) {
  RETURN_IF_ERROR(MakeDirectories(run_directory));
  ASSIGN_OR_RETURN(const std::string verdict_json, ToJson(verdict));
  ASSIGN_OR_RETURN(const std::string timeline_json, ToJson(timeline));
  RETURN_IF_ERROR(WriteFile(absl::StrCat(run_directory, "/verdict.json"), verdict_json));
  RETURN_IF_ERROR(WriteFile(absl::StrCat(run_directory, "/timeline.json"), timeline_json));
  RETURN_IF_ERROR(LinkToRun(run_directory, "verdict.json"));
  return LinkToRun(run_directory, "timeline.json");
}

absl::Status RemoveVerdict(const std::string& directory) {
  for (const char* name : {"verdict.json", "timeline.json"}) {
    const std::string path = absl::StrCat(directory, "/", name);
    if (unlink(path.c_str()) != 0 && errno != ENOENT && errno != ENOTDIR) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot remove ", path));
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
  // Bytes that are no UTF-8 would make dump throw.
  return parsed.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace cadre::agent
