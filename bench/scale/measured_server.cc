#include "bench/scale/measured_server.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/token.h"

namespace cadre {
namespace {

constexpr absl::Duration kLoadLimit = absl::Minutes(3);
constexpr absl::Duration kEndLimit = absl::Seconds(10);
constexpr int kWorkersPerNode = 8;

// Figures that the workers of a job leave in the directory, which is run with these flags.
absl::StatusOr<nlohmann::json> RunWorkers(const Programs& programs,
                                          const std::vector<std::string>& flags,
                                          const std::string& directory, int clients, int seconds) {
  const int workers = std::min(clients, kWorkersPerNode);
  const std::string file = directory + "/figures.json";
  std::filesystem::remove(file);
  std::vector<std::string> argv = {programs.cadre, "run"};
  argv.insert(argv.end(), flags.begin(), flags.end());
  argv.insert(argv.end(), {"--nproc-per-node", absl::StrCat(workers), "--job-name",
                           absl::StrCat("load-", clients), "--", programs.worker_load,
                           absl::StrCat(clients / workers), absl::StrCat(seconds), file});
  ASSIGN_OR_RETURN(const auto run, RunToEnd({argv, {}, "", false}, kLoadLimit));
  const nlohmann::json figures =
      nlohmann::json::parse(ReadFileOrEmpty(file), nullptr, /*allow_exceptions=*/false);
  if (!figures.is_discarded()) return figures;
  return absl::InternalError(absl::StrCat("cadre run left no figures: ", run->standard_error()));
}

}  // namespace

absl::Status RaiseOpenFiles(uint64_t needed) {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= needed) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("needs ", needed, " open files and may have ",
                                                   limit.rlim_cur,
                                                   ": raise the hard limit (ulimit -Hn)"));
}

absl::StatusOr<nlohmann::json> RunForJson(const std::vector<std::string>& argv) {
  ASSIGN_OR_RETURN(const auto process, RunToEnd({argv, {}, "", false}, kLoadLimit));
  const std::optional<int> status = process->Wait(absl::ZeroDuration());
  if (!status.has_value()) {
    return absl::DeadlineExceededError(
        absl::StrCat(argv[0], " did not end within ", absl::FormatDuration(kLoadLimit)));
  }
  if (*status != 0) {
    return absl::InternalError(absl::StrCat(argv[0], " ended with ", *status, ": ",
                                            absl::StripAsciiWhitespace(process->standard_error())));
  }
  const nlohmann::json figures =
      nlohmann::json::parse(process->standard_output(), nullptr, /*allow_exceptions=*/false);
  if (!figures.is_discarded()) return figures;
  return absl::InternalError(absl::StrCat(argv[0], " printed no JSON"));
}

absl::Status MeasuredServer::Start(const std::vector<std::string>& argv) {
  ASSIGN_OR_RETURN(process_, Process::Start({argv, {{"OMP_NUM_THREADS", "1"}}, "", false}));
  const std::optional<std::string> line = process_->WaitForLine("serving at");
  // The number that follows the last colon or blank.
  const std::string text = line.value_or("").substr(0, line.value_or("").find(','));
  const size_t before = text.find_last_of(": ");
  if (before == std::string::npos || !absl::SimpleAtoi(text.substr(before + 1), &port_)) {
    return absl::UnavailableError(
        absl::StrCat(argv[0], " does not serve: ", process_->standard_error()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<MeasuredServer>> MeasuredServer::StartCadre(
    const Programs& programs) {
  return StartServer(programs, true);
}

absl::StatusOr<std::unique_ptr<MeasuredServer>> MeasuredServer::StartForgetful(
    const Programs& programs) {
  return StartServer(programs, false);
}

absl::StatusOr<std::unique_ptr<MeasuredServer>> MeasuredServer::StartServer(
    const Programs& programs, bool keeps_state) {
  std::unique_ptr<MeasuredServer> server(new MeasuredServer());
  server->directory_ = MakeTempDir("scale");
  server->token_file_ = server->directory_ + "/token";
  // A random token makes a key, and one that somebody chose none.
  std::ofstream(server->token_file_)
      << (programs.tls ? RandomToken() : "0123456789abcdef0123456789abcdef") << "\n";
  chmod(server->token_file_.c_str(), 0600);
  std::vector<std::string> argv = {programs.cadre, "server",           "--port", "0",
                                   "--token-file", server->token_file_};
  if (keeps_state) argv.insert(argv.end(), {"--state-dir", server->directory_ + "/state"});
  RETURN_IF_ERROR(server->Start(argv));
  return server;
}

absl::StatusOr<std::unique_ptr<MeasuredServer>> MeasuredServer::StartBare(
    const Programs& programs) {
  std::unique_ptr<MeasuredServer> server(new MeasuredServer());
  RETURN_IF_ERROR(server->Start({programs.bare_server}));
  return server;
}

absl::StatusOr<std::unique_ptr<MeasuredServer>> MeasuredServer::StartTcpStore(
    const Programs& programs) {
  std::unique_ptr<MeasuredServer> server(new MeasuredServer());
  RETURN_IF_ERROR(server->Start({programs.tcp_store_peer, "serve"}));
  return server;
}

MeasuredServer::~MeasuredServer() {
  if (process_ != nullptr) {
    process_->Kill(SIGKILL);
    process_->Wait(kEndLimit);
  }
  std::error_code ignored;
  if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
}

std::string MeasuredServer::endpoint() const { return absl::StrCat("127.0.0.1:", port_); }

absl::StatusOr<nlohmann::json> MeasuredServer::Load(
    const Programs& programs, const std::string& what,
    const std::vector<std::string>& arguments) const {
  std::vector<std::string> argv = {programs.load, what,        "--endpoint",
                                   endpoint(),    "--process", absl::StrCat(process_->pid())};
  if (!token_file_.empty()) argv.insert(argv.end(), {"--token-file", token_file_});
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return RunForJson(argv);
}

absl::StatusOr<nlohmann::json> MeasuredServer::LoadByWorkers(const Programs& programs, int clients,
                                                             int seconds) const {
  return RunWorkers(programs,
                    {"--nnodes", "1", "--rdzv-endpoint", endpoint(), "--token-file", token_file_},
                    directory_, clients, seconds);
}

absl::StatusOr<nlohmann::json> LoadStandalone(const Programs& programs, int clients, int seconds) {
  const std::string directory = MakeTempDir("scale");
  auto figures = RunWorkers(programs, {"--standalone"}, directory, clients, seconds);
  std::error_code ignored;
  std::filesystem::remove_all(directory, ignored);
  return figures;
}

}  // namespace cadre
