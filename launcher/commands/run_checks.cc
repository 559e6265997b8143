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

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/own_files.h"
#include "base/status_macros.h"
#include "launcher/attach/server_state.h"
#include "launcher/environment/program.h"
#include "launcher/spec/job_spec.h"
#include "launcher/spec/scalars.h"
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
    return absl::InvalidArgumentError(absl::StrCat(
        flag, ": ", directory,
        " is relative to the current directory, which was removed; change to another one"));
  }
  const absl::Status made = MakeDirectories(directory);
  if (!made.ok()) return absl::InvalidArgumentError(absl::StrCat(flag, ": ", made.message()));
  if (access(directory.c_str(), W_OK | X_OK) == 0) {
    if (job.empty()) return absl::OkStatus();
    // A missing directory is created when it is needed. One that belongs to another user cannot be
    // used for output.
    const absl::Status own = OpenOwnDirectory(absl::StrCat(directory, "/", job)).status();
    if (own.ok() || errno == ENOENT) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(flag, ": ", own.message()));
  }
  return absl::InvalidArgumentError(absl::StrCat(flag, ": cannot write in ", directory, ": ",
                                                 strerror(errno),
                                                 "; choose a directory that you may write to"));
}

// Runs before the log directory is created, which usually is inside the working directory.
absl::Status CheckWorkingDir(const std::string& directory) {
  struct stat info;
  if (stat(directory.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode) && access(directory.c_str(), X_OK) == 0) return absl::OkStatus();
    if (!S_ISDIR(info.st_mode)) errno = ENOTDIR;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("working_dir: ", strerror(errno), " on this node: ", directory));
}

// If the script is missing, every worker of every restart would report it, and no launcher.
absl::Status CheckScript(const RunOptions& options) {
  if (options.script.empty()) return absl::OkStatus();
  const std::filesystem::path path =
      std::filesystem::path(options.job.working_dir()) / options.script;
  if (access(path.c_str(), R_OK) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("script ", options.script, ": ", strerror(errno), " on this node",
                   path == options.script ? "" : absl::StrCat(" (", path.string(), ")")));
}

// Checks the interpreter that PYTHON_EXEC names. If it were missing, the error would be about a
// path that is not on the command line.
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

// Why the kernel will report that a program is missing or not executable although it exists: the
// cause that a user would look for next. Empty: no reason was found.
std::string WhyCannotExecute(const v1::JobSpec& job) {
  const std::string& program = job.command(0);
  const std::filesystem::path path = std::filesystem::path(job.working_dir()) / program;
  const bool by_path = absl::StrContains(program, '/');
  std::error_code error;
  if (std::filesystem::is_directory(path, error) && (by_path || !IsOnPath(program, &job))) {
    const bool for_python = std::filesystem::exists(path / "__main__.py", error);
    return absl::StrCat(
        program, for_python ? " is a directory, which only Python can run: leave --no-python out"
                            : " is a directory without __main__.py, which Python would need to run "
                              "it: name a program");
  }
  if (!std::filesystem::is_regular_file(path, error)) return "";
  if (!by_path) {
    if (IsOnPath(program, &job)) return "";
    return absl::StrCat(program, " is not on PATH; to run the file that is here, write ./",
                        program);
  }
  if (access(path.c_str(), X_OK) != 0 && errno == EACCES) {
    return absl::StrCat(program, " is not executable: run chmod +x ", program,
                        ", or put its interpreter in front, as in 'python3 ", program, "' or 'sh ",
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
  return absl::StrCat(program, " names the interpreter ", words[0], ", which does not exist");
}

// Checks the texts that a server keeps or other nodes receive; a launcher without a server sends
// none.
absl::Status CheckUtf8Texts(const RunOptions& options) {
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

// The notice for a program that MPI's launchers should start: here MPI_Init gives each worker a
// world of its own.
std::string WhyMpiWorldIsOne(const RunOptions& options) {
  const v1::JobSpec& job = options.job;
  const bool one = job.nodes().max() == 1 && job.spares() == 0 &&
                   job.workers_per_node().kind() == v1::WorkersPerNode::COUNT &&
                   job.workers_per_node().count() == 1;
  const std::string& program = options.script.empty() ? job.command(0) : options.script;
  if (one || !CallsMpi(std::filesystem::path(job.working_dir()) / program)) return "";
  return absl::StrCat(program, options.script.empty() ? " calls MPI_Init" : " imports mpi4py",
                      ", which makes each worker rank 0 of a world of 1, because only mpirun "
                      "starts MPI ranks; use RANK and WORLD_SIZE, which Cadre sets");
}

// If the user has not chosen a log directory, one that can be written is used.
absl::Status ChooseLogDir(RunOptions& options) {
  const bool of_cluster = options.allocation != 0;
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
    // An empty entry is the working directory, where the caller has found the program.
    if (directory.empty()) return true;
    if (access(absl::StrCat(directory, "/", program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

bool IsForPythonHere(const std::string& program, const std::string& working_dir) {
  return IsForPython(std::filesystem::path(working_dir) / program) &&
         (absl::StrContains(program, '/') || !IsOnPath(program));
}

std::string WhyProgramMissing(const v1::JobSpec& job, const std::string& program) {
  const std::filesystem::path path = std::filesystem::path(job.working_dir()) / program;
  std::error_code error;
  // A macro has another value for each worker.
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
  return script ? "" : WhyCannotExecute(job);
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
  const bool of_cluster = options.allocation != 0;
  if (of_cluster) RETURN_IF_ERROR(CheckWorkingDir(options.job.working_dir()));
  RETURN_IF_ERROR(CheckScript(options));
  RETURN_IF_ERROR(CheckInterpreter(options));
  const std::string missing = WhyCannotExecute(options.job);
  if (!missing.empty()) options.notices.push_back(missing);
  const std::string alone = WhyMpiWorldIsOne(options);
  if (!alone.empty()) options.notices.push_back(alone);
  options.job.mutable_logs()->set_dir(Absolute(options.job.logs().dir()));
  RETURN_IF_ERROR(CheckUtf8Texts(options));
  return ChooseLogDir(options);
}

}  // namespace cadre::launcher
