#include "bench/floods/cadre_target.h"

#include <pwd.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "base/token.h"
#include "bench/floods/target.h"
#include "proto/control.pb.h"

namespace cadre {
namespace {

constexpr absl::Duration kStartTimeout = absl::Seconds(20);
constexpr absl::Duration kEndTimeout = absl::Seconds(10);
constexpr char kListJobs[] = "/cadre.v1.Control/ListJobs";
constexpr char kSubmitJob[] = "/cadre.v1.Control/SubmitJob";
constexpr char kGetJob[] = "/cadre.v1.Control/GetJob";
constexpr char kReadLog[] = "/cadre.v1.Control/ReadLog";
constexpr char kGetStacks[] = "/cadre.v1.Control/GetStacks";
constexpr char kStrict[] = "strict";
constexpr char kVictim[] = "victim";
// Another one than the flood's, whose own limits refuse calls of its own user.
constexpr char kHonestUser[] = "honest";
constexpr int kStarts = 3;
constexpr int kQueued = 500;
// More than there are, so that such a job waits.
constexpr uint32_t kTooManyNodes = 1000;
// An answer of each is awaited or not read at the same time.
constexpr int kUnread = 4096;
constexpr size_t kSpecBytes = size_t{500} << 10;
constexpr size_t kVariableBytes = size_t{100} << 10;

std::string OwnUser() {
  const passwd* entry = getpwuid(geteuid());
  return entry == nullptr ? "" : entry->pw_name;
}

// A job that no cluster of one node can run.
std::string Submission(const std::string& user, const std::string& name, size_t bytes) {
  v1::SubmitJobRequest request;
  request.set_user(user);
  v1::JobSpec& spec = *request.mutable_spec();
  spec.set_name(name);
  spec.add_command("/bin/true");
  spec.mutable_nodes()->set_min(kTooManyNodes);
  spec.mutable_nodes()->set_max(kTooManyNodes);
  spec.mutable_workers_per_node()->set_kind(v1::WorkersPerNode::COUNT);
  spec.mutable_workers_per_node()->set_count(1);
  spec.set_working_dir("/");
  spec.mutable_logs()->set_dir("/tmp");
  for (int i = 0; spec.ByteSizeLong() + kVariableBytes < bytes; ++i) {
    (*spec.mutable_env())[absl::StrCat("VARIABLE", i)] = std::string(kVariableBytes, 'x');
  }
  return request.SerializeAsString();
}

int CountOf(const std::string& text, const std::string& word) {
  int count = 0;
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) ++count;
  return count;
}

int PortIn(absl::string_view address) {
  int port = 0;
  const absl::string_view first = *absl::StrSplit(address, absl::ByAnyChar(", ")).begin();
  const absl::string_view host_port = absl::StripSuffix(first, "/");
  return absl::SimpleAtoi(host_port.substr(host_port.rfind(':') + 1), &port) ? port : 0;
}

}  // namespace

CadreTarget::~CadreTarget() {
  for (const auto* process : {&strict_job_, &agent_, &server_}) {
    if (*process == nullptr) continue;
    // The server last: the others end with grace, and with what they started.
    (*process)->Kill(process == &server_ ? SIGKILL : SIGTERM);
    if (!(*process)->Wait(kEndTimeout).has_value()) (*process)->Kill(SIGKILL);
  }
  std::error_code ignored;
  if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
}

std::string CadreTarget::endpoint() const { return absl::StrCat("127.0.0.1:", port_); }

absl::Status CadreTarget::Start() {
  directory_ = MakeTempDir("floods");
  user_ = OwnUser();
  RETURN_IF_ERROR(StartServer());
  RETURN_IF_ERROR(MakeTokens());
  kept_.emplace(CalledServer{port_, true, honest_token_});
  fresh_.emplace(CalledServer{port_, true, honest_token_});
  RETURN_IF_ERROR(FillQueue());
  return StartJobs();
}

absl::Status CadreTarget::StartServer() {
  RETURN_IF_ERROR(CreateTokenFile(InDirectory("token"), RandomToken()));
  // The dashboard's port, which was free a moment ago, may be another's now.
  absl::Status served;
  for (int i = 0; i < kStarts; ++i) {
    served = TryStartServer(absl::StrCat(InDirectory("server.log"), i));
    if (served.ok()) return absl::OkStatus();
    server_->Kill(SIGKILL);
    server_->Wait(kEndTimeout);
  }
  return served;
}

absl::Status CadreTarget::TryStartServer(const std::string& log) {
  server_log_ = log;
  http_port_ = FreePort();
  // The server takes connections in clear as well as through TLS.
  ASSIGN_OR_RETURN(
      server_, StartDaemon({cadre_, "server", "--port", "0", "--token-file", InDirectory("token"),
                            "--state-dir", InDirectory("state"), "--insecure", "--http",
                            absl::StrCat("127.0.0.1:", http_port_)},
                           log));
  ASSIGN_OR_RETURN(const std::string serving,
                   AwaitInLog(*server_, log, "serving at ", kStartTimeout));
  port_ = PortIn(serving);
  return absl::OkStatus();
}

absl::Status CadreTarget::MakeTokens() {
  ASSIGN_OR_RETURN(read_token_, MakeToken("read", {"--read-only"}));
  std::vector<std::string> user = {"--user", user_};
  if (geteuid() == 0) user.push_back("--allow-root");
  ASSIGN_OR_RETURN(user_token_, MakeToken("user", user));
  ASSIGN_OR_RETURN(honest_token_, MakeToken("honest", {"--user", kHonestUser}));
  return absl::OkStatus();
}

absl::StatusOr<std::string> CadreTarget::MakeToken(const std::string& file,
                                                   const std::vector<std::string>& flags) const {
  std::vector<std::string> argv = {
      cadre_,     "token",   "new", InDirectory(file), "--token-file", InDirectory("token"),
      "--server", endpoint()};
  argv.insert(argv.end(), flags.begin(), flags.end());
  RETURN_IF_ERROR(RunCommand(argv, kStartTimeout));
  return ReadTokenFile(InDirectory(file));
}

absl::Status CadreTarget::FillQueue() {
  HonestCaller user({port_, true, user_token_});
  for (int i = 0; i < kQueued; ++i) {
    RETURN_IF_ERROR(
        user.Call(kSubmitJob, Submission(user_, absl::StrCat("waits-", i), 0), kStartTimeout)
            .status());
  }
  return absl::OkStatus();
}

absl::Status CadreTarget::StartJobs() {
  std::vector<std::string> agent = {
      cadre_,        "agent", "--server", endpoint(), "--token-file", InDirectory("token"),
      "--node-name", "node0", "--cpus",   "2"};
  if (geteuid() == 0) agent.insert(agent.end(), {"--user", "root"});
  ASSIGN_OR_RETURN(agent_, StartDaemon(agent, InDirectory("agent.log")));
  ASSIGN_OR_RETURN(
      strict_job_,
      StartDaemon({cadre_, "run", "--nnodes", "1", "--rdzv-endpoint", endpoint(), "--token-file",
                   InDirectory("token"), "--strict-fencing", "--job-name", kStrict, "--log-dir",
                   InDirectory("logs"), "--", "sh", "-c", "echo worker begun; exec sleep 100000"},
                  InDirectory("strict.log")));
  RETURN_IF_ERROR(
      AwaitInLog(*strict_job_, InDirectory("strict.log"), "worker begun", kStartTimeout).status());
  std::ofstream(InDirectory("job.yaml"))
      << "name: " << kVictim << "\ncommand: [sh, -c, 'yes a line of output | head -c 4000000; "
      << "echo job begun; exec sleep 100000']\nnodes: 1\nworking_dir: " << directory_
      << "\nlogs: {dir: " << InDirectory("submitted") << "}\n";
  RETURN_IF_ERROR(RunCommand({cadre_, "submit", InDirectory("job.yaml"), "--server", endpoint(),
                              "--token-file", InDirectory("user")},
                             kStartTimeout));
  return AwaitInLog(*agent_, InDirectory("agent.log"), kVictim, kStartTimeout).status();
}

absl::Status CadreTarget::Launch(int number, absl::Duration timeout) {
  return RunCommand({cadre_, "run", "--nnodes", "1", "--rdzv-endpoint", endpoint(), "--token-file",
                     InDirectory("token"), "--job-name", absl::StrCat("launch-", number),
                     "--log-dir", InDirectory("logs"), "--", "/bin/true"},
                    timeout);
}

absl::Status CadreTarget::KeptCall(absl::Duration timeout) {
  v1::GetJobRequest request;
  request.set_name(kVictim);
  return kept_->Call(kGetJob, request.SerializeAsString(), timeout).status();
}

absl::Status CadreTarget::NewCall(absl::Duration timeout) {
  v1::GetJobRequest request;
  request.set_name(kVictim);
  fresh_->Disconnect();
  return fresh_->Call(kGetJob, request.SerializeAsString(), timeout).status();
}

std::vector<std::string> CadreTarget::Lost() {
  std::vector<std::string> lost;
  if (server_->Wait(absl::ZeroDuration()).has_value()) return {"the server has ended"};
  if (agent_->Wait(absl::ZeroDuration()).has_value()) lost.push_back("the agent has ended");
  if (strict_job_->Wait(absl::ZeroDuration()).has_value()) {
    lost.push_back("the strict job has ended");
  }
  const int begun = CountOf(ReadFileOrEmpty(InDirectory("strict.log")), "worker begun");
  if (begun > 1) lost.push_back(absl::StrCat("the strict job was restarted ", begun - 1, " times"));
  const std::string server_log = ReadFileOrEmpty(server_log_);
  for (const absl::string_view line : absl::StrSplit(server_log, '\n')) {
    if (absl::StrContains(line, "node0") && absl::StrContains(line, "lost")) {
      lost.push_back(absl::StrCat("the server's log: ", line));
    }
  }
  return lost;
}

void CadreTarget::AppendCalls(const std::string& token_text, const std::string& token,
                              std::vector<FloodCase>* cases) const {
  FloodCase one;
  one.token = token_text;
  one.transport = "TLS";
  one.options.port = port_;
  one.options.tls = true;
  one.options.token = token;
  const auto append = [&](const std::string& name, FloodKind kind, const char* path, int in_flight,
                          std::function<std::string(uint64_t)> message) {
    one.name = name;
    one.options.kind = kind;
    one.options.path = path;
    one.options.in_flight = in_flight;
    one.options.message = std::move(message);
    AppendFromFewAndMany(one, cases);
  };
  append("lists of jobs", FloodKind::kCalls, kListJobs, 64, nullptr);
  append("lists of jobs, windows of 0", FloodKind::kUnreadAnswers, kListJobs, kUnread, nullptr);
  append("lists of jobs, socket not read", FloodKind::kUnreadSocket, kListJobs, kUnread, nullptr);
  if (token != user_token_ || token_text == "read-only token") return;
  const std::string user = user_;
  const auto submission = [user](size_t bytes) {
    return [user, bytes](uint64_t call) {
      return Submission(user, absl::StrCat("flood-", call), bytes);
    };
  };
  append("submissions", FloodKind::kCalls, kSubmitJob, 64, submission(0));
  append("submissions of 500 KiB", FloodKind::kCalls, kSubmitJob, 4, submission(kSpecBytes));
  v1::ReadLogRequest log;
  log.set_job(kVictim);
  log.set_generation(1);
  const std::string log_bytes = log.SerializeAsString();
  append("log reads", FloodKind::kCalls, kReadLog, 64, [log_bytes](uint64_t) { return log_bytes; });
  append("log reads, socket not read", FloodKind::kUnreadSocket, kReadLog, kUnread,
         [log_bytes](uint64_t) { return log_bytes; });
  v1::GetStacksRequest stacks;
  stacks.set_job(kVictim);
  const std::string stacks_bytes = stacks.SerializeAsString();
  append("stack reads", FloodKind::kCalls, kGetStacks, 64,
         [stacks_bytes](uint64_t) { return stacks_bytes; });
}

std::vector<FloodCase> CadreTarget::Cases() const {
  std::vector<FloodCase> cases;
  const auto append = [&](bool tls, const std::string& token_text, const std::string& token) {
    FloodOptions to;
    to.port = port_;
    to.tls = tls;
    to.token = token;
    to.path = kListJobs;
    const std::vector<FloodCase> more = Http2Cases(to, token_text);
    cases.insert(cases.end(), more.begin(), more.end());
  };
  append(false, "no token", "");
  append(true, "no token", "");
  for (const auto& [text, token] :
       {std::pair{"read-only token", read_token_}, std::pair{"user's token", user_token_}}) {
    append(true, text, token);
    AppendCalls(text, token, &cases);
    FloodCase events;
    events.name = "event streams of the dashboard, not read";
    events.token = text;
    events.transport = "clear";
    events.options.kind = FloodKind::kBytes;
    events.options.port = http_port_;
    const std::string request =
        absl::StrCat("GET /api/events HTTP/1.1\r\nHost: 127.0.0.1:", http_port_,
                     "\r\nAuthorization: Bearer ", token, "\r\n\r\n");
    events.options.message = [request](uint64_t) { return request; };
    AppendFromFewAndMany(events, &cases);
  }
  return cases;
}

}  // namespace cadre
