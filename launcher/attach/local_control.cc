#include "launcher/attach/local_control.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/user_directory.h"

namespace cadre::launcher {
namespace {

constexpr char kPrefix[] = "launcher_";
constexpr char kSuffix[] = ".sock";
// The suffix of a file with the job's name and the log directory, one per line, which is read if
// the launcher does not answer.
constexpr char kJobSuffix[] = ".job";
constexpr size_t kMaxQuestionBytes = 64 << 10;
constexpr size_t kMaxAnswerBytes = size_t{256} << 20;
// The limit of one read or write. Stacks take 2.5 s at most.
constexpr int kTimeoutSeconds = 10;
// The limit for requests that are answered at once: a suspended launcher never answers, and every
// command asks it.
constexpr int kQuickTimeoutSeconds = 1;

constexpr char kListJobs = 'L';
constexpr char kGetJob = 'J';
constexpr char kCancelJob = 'C';
constexpr char kGetStacks = 'S';
constexpr char kLogDir = 'D';

// The address of a path of any length, through a descriptor of its directory.
struct Address {
  explicit Address(const std::string& path)
      : directory(open(path.substr(0, path.rfind('/')).c_str(), O_PATH | O_CLOEXEC)) {
    const std::string text =
        absl::StrCat("/proc/self/fd/", directory.get(), path.substr(path.rfind('/')));
    address.sun_family = AF_UNIX;
    text.copy(address.sun_path, sizeof(address.sun_path) - 1);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }

  const ScopedFd directory;
  sockaddr_un address = {};
};

std::string JobFile(const std::string& socket) {
  return absl::StrCat(absl::StripSuffix(socket, kSuffix), kJobSuffix);
}

// The sockets of all launchers that run on this machine, or were killed, the newest first.
std::vector<std::string> Sockets() {
  std::vector<std::pair<int64_t, std::string>> found;
  const absl::StatusOr<std::string> directory = RuntimeDirectory();
  if (!directory.ok()) return {};
  std::error_code error;
  for (std::filesystem::directory_iterator entry(*directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    struct stat info;
    if (!absl::StartsWith(name, kPrefix) || !absl::EndsWith(name, kSuffix) ||
        stat(entry->path().c_str(), &info) != 0) {
      continue;
    }
    found.emplace_back(absl::ToUnixNanos(absl::TimeFromTimespec(info.st_mtim)), entry->path());
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<std::string> paths;
  for (auto& [time, path] : found) paths.push_back(std::move(path));
  return paths;
}

// Returns the pid in the name of the socket; 0: the name has none.
pid_t PidOf(const std::string& socket) {
  absl::string_view name = socket;
  name.remove_prefix(name.rfind('/') + 1);
  int pid = 0;
  const bool is_number = absl::ConsumePrefix(&name, kPrefix) &&
                         absl::ConsumeSuffix(&name, kSuffix) && absl::SimpleAtoi(name, &pid);
  return is_number ? pid : 0;
}

// Whether the process was stopped by a signal or a debugger.
bool IsStopped(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string stat;
  std::getline(file, stat);
  // The state follows the process's name, which may contain any characters.
  const size_t name_end = stat.rfind(") ");
  return name_end != std::string::npos && (stat[name_end + 2] == 'T' || stat[name_end + 2] == 't');
}

ScopedFd MakeSocket() { return ScopedFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

void SetTimeouts(int fd, int seconds) {
  const timeval timeout = {seconds, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
}

// Reads until the other side shuts down. False: it sent too much, or nothing for too long.
bool ReadAll(int fd, size_t limit, std::string* text) {
  char chunk[16 << 10];
  for (;;) {
    const ssize_t got = read(fd, chunk, sizeof(chunk));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got == 0;
    text->append(chunk, static_cast<size_t>(got));
    if (text->size() > limit) return false;
  }
}

bool WriteAll(int fd, absl::string_view rest) {
  while (!rest.empty()) {
    const ssize_t sent = send(fd, rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    rest.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

// Waits for the answer that the core's thread passes to the callback.
template <typename Answered, typename Ask>
absl::StatusOr<Answered> Wait(const Ask& ask) {
  // The callback may come after the wait has ended.
  auto answer = std::make_shared<std::promise<absl::StatusOr<Answered>>>();
  ask([answer](absl::StatusOr<Answered> answered) { answer->set_value(std::move(answered)); });
  auto coming = answer->get_future();
  if (coming.wait_for(std::chrono::seconds(kTimeoutSeconds)) != std::future_status::ready) {
    return absl::DeadlineExceededError("the job's launcher does not answer");
  }
  return coming.get();
}

template <typename Message>
absl::StatusOr<Message> Parsed(const absl::StatusOr<std::string>& text) {
  if (!text.ok()) return text.status();
  Message message;
  if (message.ParseFromString(*text)) return message;
  return absl::UnavailableError(
      "the job's launcher runs another version of Cadre, and this command cannot read its answer");
}

absl::StatusOr<std::string> AnswerOf(host::CoreThread& core, char question,
                                     const std::string& text) {
  if (question == kListJobs) {
    ASSIGN_OR_RETURN(
        const std::vector<v1::JobStatus> jobs,
        Wait<std::vector<v1::JobStatus>>([&](auto done) { core.AskAllStatuses(std::move(done)); }));
    v1::ListJobsReply reply;
    for (const v1::JobStatus& job : jobs) *reply.add_jobs() = job;
    return reply.SerializeAsString();
  }
  if (question == kGetJob) {
    ASSIGN_OR_RETURN(const v1::JobStatus job, Wait<v1::JobStatus>([&](auto done) {
                       core.AskStatus(text, std::move(done));
                     }));
    return job.SerializeAsString();
  }
  v1::CancelJobRequest cancel;
  if (question == kCancelJob && cancel.ParseFromString(text)) {
    ASSIGN_OR_RETURN(const v1::JobStatus job, Wait<v1::JobStatus>([&](auto done) {
                       core.AskCancel({cancel.name(), cancel.reason(), SIGINT}, std::move(done));
                     }));
    return job.SerializeAsString();
  }
  v1::GetStacksRequest request;
  if (question != kGetStacks || !request.ParseFromString(text)) {
    return absl::UnimplementedError(
        "the job's launcher runs an earlier version of Cadre than this command and does not know "
        "this request");
  }
  ASSIGN_OR_RETURN(const v1::GetStacksReply stacks, Wait<v1::GetStacksReply>([&](auto done) {
                     core.AskStacks(request, std::move(done));
                   }));
  return stacks.SerializeAsString();
}

}  // namespace

std::unique_ptr<LocalControl> LocalControl::Start(std::string log_dir, const std::string& job,
                                                  Serving serving) {
  const absl::StatusOr<std::string> directory = RuntimeDirectory();
  if (!directory.ok()) return nullptr;
  std::string path = absl::StrCat(*directory, "/", kPrefix, getpid(), kSuffix);
  const Address address(path);
  ScopedFd socket = MakeSocket();
  if (!socket.ok()) return nullptr;
  // The socket belongs to a killed process that had the same pid.
  unlink(path.c_str());
  if (bind(socket.get(), address.get(), sizeof(address.address)) != 0 ||
      listen(socket.get(), SOMAXCONN) != 0) {
    return nullptr;
  }
  std::ofstream(JobFile(path)) << job << "\n" << log_dir << "\n";
  return std::unique_ptr<LocalControl>(
      new LocalControl(std::move(path), std::move(socket), std::move(log_dir), std::move(serving)));
}

LocalControl::LocalControl(std::string path, ScopedFd socket, std::string log_dir, Serving serving)
    : path_(std::move(path)),
      socket_(std::move(socket)),
      log_dir_(std::move(log_dir)),
      serving_(std::move(serving)),
      thread_([this] { Run(); }) {}

LocalControl::~LocalControl() {
  unlink(path_.c_str());
  unlink(JobFile(path_).c_str());
  // Wakes accept().
  shutdown(socket_.get(), SHUT_RDWR);
  thread_.join();
}

void LocalControl::Run() {
  for (;;) {
    const ScopedFd connection(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (connection.ok()) {
      Answer(connection.get());
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return;  // the socket was shut down, or descriptors have run out
    }
  }
}

void LocalControl::Answer(int connection) const {
  SetTimeouts(connection, kTimeoutSeconds);
  std::string question;
  if (!ReadAll(connection, kMaxQuestionBytes, &question) || question.empty()) return;
  absl::StatusOr<std::string> answer = log_dir_;
  if (question[0] != kLogDir) {
    const auto core = serving_();
    answer = core.ok() ? AnswerOf(**core, question[0], question.substr(1)) : core.status();
  }
  // The status's code, and then its message or the answer.
  const std::string code(1, static_cast<char>(answer.status().code()));
  WriteAll(connection, absl::StrCat(code, answer.ok() ? *answer : answer.status().message()));
}

std::vector<LocalLauncher> LocalLauncher::All() {
  std::vector<LocalLauncher> launchers;
  for (std::string& path : Sockets()) {
    if (IsStopped(PidOf(path))) continue;
    LocalLauncher launcher(std::move(path));
    if (launcher.LogDir().ok()) launchers.push_back(std::move(launcher));
  }
  return launchers;
}

std::vector<SuspendedLauncher> LocalLauncher::Suspended() {
  std::vector<SuspendedLauncher> launchers;
  for (const std::string& path : Sockets()) {
    SuspendedLauncher launcher;
    launcher.pid = PidOf(path);
    std::ifstream file(JobFile(path));
    const bool known = std::getline(file, launcher.job) && std::getline(file, launcher.log_dir);
    if (known && IsStopped(launcher.pid)) launchers.push_back(std::move(launcher));
  }
  return launchers;
}

absl::StatusOr<std::string> LocalLauncher::Ask(char question, const std::string& text) const {
  const absl::Status gone = absl::UnavailableError("the job's launcher has ended");
  const Address address(path_);
  const ScopedFd socket = MakeSocket();
  if (!socket.ok()) return gone;
  SetTimeouts(socket.get(), question == kLogDir ? kQuickTimeoutSeconds : kTimeoutSeconds);
  if (connect(socket.get(), address.get(), sizeof(address.address)) != 0) {
    if (errno == ECONNREFUSED) {
      unlink(path_.c_str());
      unlink(JobFile(path_).c_str());
    }
    return gone;
  }
  std::string answer;
  if (!WriteAll(socket.get(), absl::StrCat(std::string(1, question), text)) ||
      shutdown(socket.get(), SHUT_WR) != 0 || !ReadAll(socket.get(), kMaxAnswerBytes, &answer) ||
      answer.empty()) {
    return gone;
  }
  const auto code = static_cast<absl::StatusCode>(answer[0]);
  answer.erase(0, 1);
  if (code == absl::StatusCode::kOk) return answer;
  return absl::Status(code, answer);
}

absl::StatusOr<std::vector<v1::JobStatus>> LocalLauncher::List() const {
  ASSIGN_OR_RETURN(const v1::ListJobsReply reply, Parsed<v1::ListJobsReply>(Ask(kListJobs, "")));
  return std::vector<v1::JobStatus>(reply.jobs().begin(), reply.jobs().end());
}

absl::StatusOr<v1::JobStatus> LocalLauncher::Get(const std::string& job) const {
  return Parsed<v1::JobStatus>(Ask(kGetJob, job));
}

absl::StatusOr<v1::JobStatus> LocalLauncher::Cancel(const std::string& job,
                                                    const std::string& reason) const {
  v1::CancelJobRequest request;
  request.set_name(job);
  request.set_reason(reason);
  return Parsed<v1::JobStatus>(Ask(kCancelJob, request.SerializeAsString()));
}

absl::StatusOr<v1::GetStacksReply> LocalLauncher::GetStacks(
    const v1::GetStacksRequest& request) const {
  return Parsed<v1::GetStacksReply>(Ask(kGetStacks, request.SerializeAsString()));
}

absl::StatusOr<std::string> LocalLauncher::LogDir() const { return Ask(kLogDir, ""); }

}  // namespace cadre::launcher
