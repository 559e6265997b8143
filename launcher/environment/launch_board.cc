#include "launcher/environment/launch_board.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/user_directory.h"

namespace cadre::launcher {
namespace {

constexpr char kServer[] = "server";
constexpr char kNode[] = "node-";
constexpr char kEnded[] = "ended";
constexpr char kTookPart[] = "ran";
constexpr absl::string_view kAt = "at ";
constexpr absl::string_view kFailed = "failed ";
// The interval between two polls: first the shorter, then doubled each time up to the longer.
constexpr absl::Duration kFirstLook = absl::Milliseconds(10);
constexpr absl::Duration kLastLook = absl::Milliseconds(500);
// A start that takes longer is reported to the user.
constexpr absl::Duration kSlow = absl::Seconds(10);
// Older files were left by another launch of the same name; much older ones by a launch that has no
// use for them any more.
constexpr absl::Duration kOld = kLaunchEndKept;
constexpr absl::Duration kForgotten = absl::Hours(48);
constexpr size_t kMaxLine = 4096;

// A network file system caches for half a minute that a file does not exist. A change of the
// directory by this machine shows that others have changed it too, which invalidates the cache.
void ForgetWhatWasNotThere(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/.look-", getpid(), "-", time(nullptr));
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return;
  close(fd);
  unlink(path.c_str());
}

// Both times are the file server's; the directory was changed just now.
bool IsOlder(absl::Duration age, const struct stat& directory, const struct stat& file) {
  return directory.st_mtime - file.st_mtime > absl::ToInt64Seconds(age);
}

// Removes the files of old launches: those that were killed or failed to serve left all files, and
// each launch leaves a file about its end.
void RemoveForgotten(const std::string& directory) {
  struct stat now = {};
  if (stat(directory.c_str(), &now) != 0) return;
  DIR* const entries = opendir(directory.c_str());
  if (entries == nullptr) return;
  while (const dirent* const entry = readdir(entries)) {
    const absl::string_view name = entry->d_name;
    const absl::string_view kind = name.substr(std::min(name.size(), name.rfind('.') + 1));
    const bool of_the_end = kind == kEnded || kind == kTookPart;
    if (!of_the_end && kind != kServer && !absl::StartsWith(kind, kNode)) continue;
    const std::string path = absl::StrCat(directory, "/", name);
    struct stat info = {};
    const absl::Duration kept = of_the_end ? kLaunchEndKept : kForgotten;
    if (lstat(path.c_str(), &info) == 0 && IsOlder(kept, now, info)) unlink(path.c_str());
  }
  closedir(entries);
}

std::string FirstLineOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string line;
  std::getline(file, line);
  return line;
}

// When the file was written, by the file server's clock; the infinite past if it does not exist.
absl::Time WrittenAt(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 ? absl::TimeFromTimespec(info.st_mtim)
                                        : absl::InfinitePast();
}

// Compares the file server's clock with this machine's, so that no file need be written to get the
// server's time.
bool IsKept(const std::string& path) { return absl::Now() - WrittenAt(path) <= kLaunchEndKept; }

absl::Status CannotServe(absl::string_view why) {
  return absl::UnavailableError(
      absl::StrCat("the node that is to serve the rendezvous cannot serve it: ", why));
}

class Waiting {
 public:
  Waiting(std::string directory, absl::Duration timeout)
      : directory_(std::move(directory)), began_(MonoNow()), timeout_(timeout) {
    ForgetWhatWasNotThere(directory_);
  }
  // Returns false when `timeout` is over.
  bool Again() {
    if (MonoNow() - began_ >= timeout_) return false;
    absl::SleepFor(pause_);
    pause_ = std::min(2 * pause_, kLastLook);
    ForgetWhatWasNotThere(directory_);
    return true;
  }
  absl::Duration So() const { return MonoNow() - began_; }

 private:
  const std::string directory_;
  const MonoTime began_;
  const absl::Duration timeout_;
  absl::Duration pause_ = kFirstLook;
};

std::string Come(const std::vector<LaunchBoard::Node>& nodes) {
  std::string text;
  for (const LaunchBoard::Node& node : nodes) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", node.name, " (", node.tasks, ")");
  }
  return text;
}

}  // namespace

absl::StatusOr<LaunchBoard> LaunchBoard::Open(const std::string& launch) {
  ASSIGN_OR_RETURN(std::string directory, HomeDirectory());
  return LaunchBoard(std::move(directory), launch);
}

// Atomically: the text is written under another name first.
absl::Status LaunchBoard::Write(const std::string& name, absl::string_view text) const {
  const std::string path = PathOf(name);
  const std::string draft = absl::StrCat(path, ".new-", getpid());
  std::ofstream file(draft, std::ios::binary);
  file << text;
  file.close();
  if (file && rename(draft.c_str(), path.c_str()) == 0) {
    RemoveForgotten(directory_);
    return absl::OkStatus();
  }
  const absl::Status why = absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  unlink(draft.c_str());
  return why;
}

// Returns what follows the prefix in the files' names, with their first lines.
std::vector<std::pair<std::string, std::string>> LaunchBoard::Read(absl::string_view prefix) const {
  const std::string begin = absl::StrCat(launch_, ".", prefix);
  struct stat directory = {};
  if (stat(directory_.c_str(), &directory) != 0) return {};
  std::vector<std::pair<std::string, std::string>> found;
  DIR* const entries = opendir(directory_.c_str());
  if (entries == nullptr) return {};
  while (const dirent* const entry = readdir(entries)) {
    absl::string_view name = entry->d_name;
    if (!absl::ConsumePrefix(&name, begin) || absl::StrContains(name, ".")) continue;
    const std::string path = absl::StrCat(directory_, "/", entry->d_name);
    struct stat info = {};
    if (stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || IsOlder(kOld, directory, info))
      continue;
    found.emplace_back(name, FirstLineOf(path));
  }
  closedir(entries);
  return found;
}

absl::StatusOr<std::vector<LaunchBoard::Node>> LaunchBoard::GatherNodes(
    const Node& own, uint32_t tasks, absl::Duration timeout) const {
  RETURN_IF_ERROR(
      Write(absl::StrCat(kNode, own.task), absl::StrCat(own.tasks, " ", own.name, "\n")));
  std::vector<Node> nodes;
  Waiting waiting(directory_, timeout);
  do {
    nodes.clear();
    uint64_t sum = 0;
    for (const auto& [name, line] : Read(kNode)) {
      const std::pair<std::string, std::string> words =
          absl::StrSplit(line, absl::MaxSplits(' ', 1));
      Node node;
      if (!absl::SimpleAtoi(name, &node.task) || !absl::SimpleAtoi(words.first, &node.tasks))
        continue;
      node.name = words.second;
      sum += node.tasks;
      nodes.push_back(std::move(node));
    }
    std::sort(nodes.begin(), nodes.end(),
              [](const Node& a, const Node& b) { return a.task < b.task; });
    if (sum == tasks) return nodes;
    if (sum > tasks) {
      return absl::InvalidArgumentError(absl::StrCat(
          "this launch has ", tasks, " tasks, but its nodes report ", sum, ": ", Come(nodes), " (",
          Where(), "); remove those files if they are of an earlier launch"));
    }
  } while (waiting.Again());
  return absl::DeadlineExceededError(absl::StrCat(
      "this launch has ", tasks, " tasks, but within ", absl::FormatDuration(timeout),
      " only the tasks of ", Come(nodes), " have reported (", Where(),
      "); are all of them 'cadre run', and is the home directory the same on every node? If not, "
      "add --nnodes N, --rdzv-endpoint HOST[:PORT] and --token-file FILE"));
}

absl::Status LaunchBoard::PublishAddress(absl::string_view at) const {
  return Write(kServer, absl::StrCat(kAt, at, "\n"));
}

void LaunchBoard::PublishFailure(absl::string_view why) const {
  // If even that cannot be written, the others wait until their timeout is over.
  Write(kServer, absl::StrCat(kFailed, why.substr(0, kMaxLine), "\n")).IgnoreError();
}

absl::StatusOr<std::string> LaunchBoard::AwaitServer(absl::Duration timeout,
                                                     const std::string& node,
                                                     const std::function<void()>& slow) const {
  bool said_slow = false;
  Waiting waiting(directory_, timeout);
  do {
    for (const auto& [name, line] : Read(kServer)) {
      absl::string_view text = line;
      if (name.empty() && absl::ConsumePrefix(&text, kAt)) return std::string(text);
    }
    const absl::Status failed = Failure(node);
    if (!failed.ok()) {
      NoteTakenPart(node);
      return failed;
    }
    if (!HasTakenPart(node) && ReadEnd().ok()) {
      return absl::NotFoundError(absl::StrCat("launch ", launch_, " has ended"));
    }
    if (!said_slow && waiting.So() >= kSlow) slow();
    said_slow = said_slow || waiting.So() >= kSlow;
  } while (waiting.Again());
  return absl::DeadlineExceededError(absl::StrCat(
      "the node that is to serve the rendezvous did not publish its address within ",
      absl::FormatDuration(timeout), " (", Where(),
      "); is the home directory the same on every node? If not, make a token with 'cadre token new "
      "FILE' and add --token-file FILE"));
}

absl::Status LaunchBoard::Failure(const std::string& node) const {
  const std::string path = PathOf(kServer);
  const std::string line = FirstLineOf(path);
  absl::string_view why = line;
  if (!absl::ConsumePrefix(&why, kFailed) || !IsKept(path)) return absl::OkStatus();
  const absl::Time heard = WrittenAt(PathOf(absl::StrCat(node, ".", kTookPart)));
  return WrittenAt(path) <= heard ? absl::OkStatus() : CannotServe(why);
}

absl::Status LaunchBoard::RecordEnd(const v1::Verdict& verdict) const {
  return Write(kEnded, verdict.SerializeAsString());
}

absl::StatusOr<v1::Verdict> LaunchBoard::ReadEnd() const {
  const std::string path = PathOf(kEnded);
  v1::Verdict verdict;
  std::ifstream file(path, std::ios::binary);
  if (file && IsKept(path) && verdict.ParseFromIstream(&file) &&
      verdict.outcome() != v1::JOB_PHASE_UNSPECIFIED) {
    return verdict;
  }
  return absl::NotFoundError(absl::StrCat("there is no ", path, " of this launch"));
}

void LaunchBoard::NoteTakenPart(const std::string& node) const {
  // If this fails, the next run may take this run's end for its own, and its error will say so.
  Write(absl::StrCat(node, ".", kTookPart), "").IgnoreError();
}

bool LaunchBoard::HasTakenPart(const std::string& node) const {
  return access(PathOf(absl::StrCat(node, ".", kTookPart)).c_str(), F_OK) == 0;
}

void LaunchBoard::ForgetEarlierRun() const {
  unlink(PathOf(kEnded).c_str());
  if (absl::StartsWith(FirstLineOf(PathOf(kServer)), kFailed)) unlink(PathOf(kServer).c_str());
}

void LaunchBoard::Remove() const {
  for (const char* const prefix : {kServer, kNode}) {
    for (const auto& [name, line] : Read(prefix)) {
      unlink(PathOf(absl::StrCat(prefix, name)).c_str());
    }
  }
}

namespace {

// Sends a request, and returns the words of the answer that contain "=".
absl::StatusOr<std::map<std::string, std::string>> AskPmi(int fd, const std::string& question,
                                                          MonoTime until) {
  if (send(fd, question.data(), question.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(question.size())) {
    return absl::UnavailableError("PMI accepts no requests");
  }
  std::string answer;
  while (answer.find('\n') == std::string::npos) {
    pollfd ready = {fd, POLLIN, 0};
    const int64_t left = absl::ToInt64Milliseconds(until - MonoNow());
    char part[512];
    const bool came = left > 0 && poll(&ready, 1, static_cast<int>(left)) > 0;
    const ssize_t got = came ? recv(fd, part, sizeof(part), 0) : 0;
    if (got <= 0 || answer.size() > kMaxLine) {
      return absl::UnavailableError("PMI does not answer");
    }
    answer.append(part, static_cast<size_t>(got));
  }
  std::map<std::string, std::string> words;
  for (const absl::string_view word : absl::StrSplit(answer, absl::ByAnyChar(" \n"))) {
    words.insert(absl::StrSplit(word, absl::MaxSplits('=', 1)));
  }
  return words;
}

}  // namespace

absl::StatusOr<std::string> AskPmiForJob(int fd, absl::Duration timeout) {
  const MonoTime until = MonoNow() + timeout;
  RETURN_IF_ERROR(AskPmi(fd, "cmd=init pmi_version=1 pmi_subversion=1\n", until).status());
  const auto answer = AskPmi(fd, "cmd=get_my_kvsname\n", until);
  // mpirun considers a process that does not finalize as failed.
  RETURN_IF_ERROR(AskPmi(fd, "cmd=finalize\n", until).status());
  RETURN_IF_ERROR(answer.status());
  const auto name = answer->find("kvsname");
  if (name != answer->end() && !name->second.empty()) return name->second;
  return absl::UnavailableError("PMI does not tell the name of its job");
}

}  // namespace cadre::launcher
