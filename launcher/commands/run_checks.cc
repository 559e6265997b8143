#include "launcher/commands/run_checks.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/own_files.h"
#include "base/status_macros.h"
#include "launcher/attach/state_directory.h"
#include "launcher/environment/program.h"
#include "launcher/spec/utf8_fields.h"
#include "proto/rendezvous.pb.h"

namespace cadre::launcher {
namespace {

std::string Absolute(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.lexically_normal().string();
}

absl::Status CheckLogDir(const std::string& flag, const std::string& directory,
                         const std::string& job) {
  if (directory.empty()) return absl::OkStatus();
  if (directory[0] != '/') {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": the current directory, below which ", directory,
                     " is to be, was removed; change to another one"));
  }
  const absl::Status made = MakeDirectories(directory);
  if (!made.ok()) return absl::InvalidArgumentError(absl::StrCat(flag, ": ", made.message()));
  if (access(directory.c_str(), W_OK | X_OK) == 0) {
    if (job.empty()) return absl::OkStatus();
    // What is missing is made once it is needed; somebody else's is no place for output.
    const absl::Status own = OpenOwnDirectory(absl::StrCat(directory, "/", job)).status();
    if (own.ok() || errno == ENOENT) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(flag, ": ", own.message()));
  }
  return absl::InvalidArgumentError(absl::StrCat(flag, ": cannot write in ", directory, ": ",
                                                 strerror(errno), "; choose a directory of yours"));
}

// Before the log directory, which mostly lies in it and would be made.
absl::Status CheckWorkingDir(const std::string& directory) {
  struct stat info;
  if (stat(directory.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode) && access(directory.c_str(), X_OK) == 0) return absl::OkStatus();
    if (!S_ISDIR(info.st_mode)) errno = ENOTDIR;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("working_dir: ", strerror(errno), " on this node: ", directory));
}

// Where it is missing every worker of every restart would say so, and no launcher.
absl::Status CheckScript(const RunOptions& options) {
  if (options.script.empty()) return absl::OkStatus();
  const std::filesystem::path path =
      std::filesystem::path(options.job.working_dir()) / options.script;
  if (access(path.c_str(), R_OK) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("script ", options.script, ": ", strerror(errno), " on this node",
                   path == options.script ? "" : absl::StrCat(" (", path.string(), ")")));
}

// The interpreter that the user's variable names. That it is missing would be told of a path which
// the command does not have.
absl::Status CheckInterpreter(const RunOptions& options) {
  const auto own = options.job.env().find("PYTHON_EXEC");
  const char* const inherited = getenv("PYTHON_EXEC");
  std::string python = inherited == nullptr ? "" : inherited;
  if (own != options.job.env().end()) python = own->second;
  if (python.empty() || python != options.job.command(0)) return absl::OkStatus();
  std::string why = "it is not on PATH";
  if (absl::StrContains(python, '/')) {
    const std::filesystem::path path = std::filesystem::path(options.job.working_dir()) / python;
    std::error_code error;
    const bool folder = std::filesystem::is_directory(path, error);
    if (!folder && access(path.c_str(), X_OK) == 0) return absl::OkStatus();
    why = strerror(folder ? EISDIR : errno);
  } else if (IsOnPath(python, &options.job)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("PYTHON_EXEC=", python, ": ", why,
                   " on this node; expected a Python interpreter: set it to one, or unset it"));
}

// Why the kernel will say that there is no such file, or that it may not be executed, where one is:
// what a person would look for next. Empty: no reason is seen.
std::string WhyNotFound(const v1::JobSpec& job) {
  const std::string& program = job.command(0);
  const std::filesystem::path path = std::filesystem::path(job.working_dir()) / program;
  const bool by_path = absl::StrContains(program, '/');
  std::error_code error;
  if (std::filesystem::is_directory(path, error) && (by_path || !IsOnPath(program, &job))) {
    const bool for_python = std::filesystem::exists(path / "__main__.py", error);
    return absl::StrCat(program,
                        for_python ? " is a folder, which Python alone runs: leave --no-python out"
                                   : " is a folder without __main__.py, the file of it that "
                                     "Python would run: name a program");
  }
  if (!std::filesystem::is_regular_file(path, error)) return "";
  if (!by_path) {
    if (IsOnPath(program, &job)) return "";
    return absl::StrCat(program, " is not on PATH; ./", program, " would be the one that is here");
  }
  if (access(path.c_str(), X_OK) != 0 && errno == EACCES) {
    return absl::StrCat(program, " may not be executed: chmod +x ", program,
                        ", or put what runs it in front, as in 'python3 ", program, "' or 'sh ",
                        program, "'");
  }
  std::string line;
  std::ifstream file(path, std::ios::binary);
  if (file.get() != '#' || file.get() != '!' || !std::getline(file, line)) return "";
  const std::vector<std::string> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
  if (words.empty()) return "";
  const std::filesystem::path interpreter = std::filesystem::path(job.working_dir()) / words[0];
  if (access(interpreter.c_str(), F_OK) == 0) return "";
  return absl::StrCat(program, " is to be run by ", words[0], ", which is not there");
}

// What a server keeps or other nodes hear; a launcher that is alone sends nothing to anybody.
absl::Status CheckTexts(const RunOptions& options) {
  const bool keeps = !options.state_dir.empty() && options.state_dir != kNoStateDir;
  if (options.endpoints.empty() && !keeps) return absl::OkStatus();
  RETURN_IF_ERROR(CheckUtf8Fields(options.job));
  v1::Join join;
  join.set_node(options.node_name);
  join.set_address(options.local_addr);
  join.set_master_addr(options.master_addr);
  for (const std::string& node : options.expected_nodes) join.add_expected_nodes(node);
  return CheckUtf8Fields(join);
}

// A program that MPI's launchers start: here each worker is a world of its own for MPI_Init.
std::string WhyAlone(const RunOptions& options) {
  const v1::JobSpec& job = options.job;
  const bool one = job.nodes().max() == 1 && job.spares() == 0 &&
                   job.workers_per_node().kind() == v1::WorkersPerNode::COUNT &&
                   job.workers_per_node().count() == 1;
  const std::string& program = options.script.empty() ? job.command(0) : options.script;
  if (one || !CallsMpi(std::filesystem::path(job.working_dir()) / program)) return "";
  return absl::StrCat(
      program, options.script.empty() ? " calls MPI_Init" : " imports mpi4py",
      ", for which each worker is rank 0 of 1: ranks of MPI are started by mpirun alone; RANK and "
      "WORLD_SIZE say what Cadre started");
}

// Where nobody asked for logs in this place, they are in one that can be written to.
absl::Status ChooseLogDir(RunOptions& options) {
  const bool of_cluster = options.part != 0;
  const std::string logs = options.job.logs().dir();
  const absl::Status checked =
      CheckLogDir(of_cluster ? "logs.dir" : "--log-dir", logs, options.job.name());
  if (checked.ok() || !options.logs_anywhere || of_cluster || logs[0] != '/') return checked;
  const char* const temporary = getenv("TMPDIR");
  std::string other = absl::StrCat(temporary == nullptr || temporary[0] != '/' ? "/tmp" : temporary,
                                   "/cadre-logs-XXXXXX");
  if (mkdtemp(other.data()) == nullptr) return checked;
  options.job.mutable_logs()->set_dir(other);
  options.notices.push_back(absl::StrCat("logs are in ", other, ": ",
                                         absl::StripPrefix(checked.message(), "--log-dir: ")));
  return absl::OkStatus();
}

}  // namespace

bool IsOnPath(const std::string& program, const v1::JobSpec* job) {
  const char* const inherited = getenv("PATH");
  std::string path = inherited == nullptr ? "" : inherited;
  if (job != nullptr && job->env().count("PATH") > 0) path = job->env().at("PATH");
  for (const absl::string_view directory : absl::StrSplit(path, ':')) {
    // An empty entry is the working directory, where the caller has found it.
    if (directory.empty()) return true;
    if (access(absl::StrCat(directory, "/", program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

bool IsForPythonHere(const std::string& program, const std::string& working_dir) {
  return IsForPython(std::filesystem::path(working_dir) / program) &&
         (absl::StrContains(program, '/') || !IsOnPath(program));
}

std::string WhyNotHere(const v1::JobSpec& job, const std::string& program) {
  const std::filesystem::path path = std::filesystem::path(job.working_dir()) / program;
  std::error_code error;
  // A macro is filled in for each worker.
  if (absl::StrContains(program, "${") || !std::filesystem::is_directory(job.working_dir(), error))
    return "";
  const bool script = program != job.command(0);
  if (script || absl::StrContains(program, '/')) {
    if (access(path.c_str(), script ? R_OK : F_OK) != 0) {
      return absl::StrCat(script ? "script " : "program ", program, ": ", strerror(errno),
                          path == program ? "" : absl::StrCat(" (", path.string(), ")"));
    }
  } else if (!std::filesystem::exists(path, error) && !IsOnPath(program, &job)) {
    return absl::StrCat("program ", program, ": it is neither on PATH nor in ", job.working_dir());
  }
  return script ? "" : WhyNotFound(job);
}

absl::Status CheckDescriptors() {
  constexpr rlim_t kLeast = 32;
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kLeast) return absl::OkStatus();
  const rlim_t may = limit.rlim_cur;
  limit.rlim_cur = kLeast;
  if (limit.rlim_max >= kLeast && setrlimit(RLIMIT_NOFILE, &limit) == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(strerror(EMFILE), ": this process may open ",
                                                   may, " files and needs ", kLeast,
                                                   " at least; raise the limit (ulimit -n)"));
}

absl::Status CheckNode(RunOptions& options) {
  const bool of_cluster = options.part != 0;
  if (of_cluster) RETURN_IF_ERROR(CheckWorkingDir(options.job.working_dir()));
  RETURN_IF_ERROR(CheckScript(options));
  RETURN_IF_ERROR(CheckInterpreter(options));
  const std::string missing = WhyNotFound(options.job);
  if (!missing.empty()) options.notices.push_back(missing);
  const std::string alone = WhyAlone(options);
  if (!alone.empty()) options.notices.push_back(alone);
  options.job.mutable_logs()->set_dir(Absolute(options.job.logs().dir()));
  RETURN_IF_ERROR(CheckTexts(options));
  return ChooseLogDir(options);
}

}  // namespace cadre::launcher
