#include "launcher/attach/launch_end.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "agent/run_files.h"
#include "rpc/job_phase.h"

namespace cadre::launcher {
namespace {

constexpr absl::string_view kEnding = ".ended";
constexpr absl::string_view kTookPart = ".ran";
// Entries of the directory that are looked at for files to remove.
constexpr int kSwept = 1024;

std::string PathBeside(const std::string& token_file) {
  return absl::StrCat(absl::StripSuffix(token_file, ".token"), kEnding);
}

std::string TookPartPath(const std::string& token_file, const std::string& node) {
  return absl::StrCat(absl::StripSuffix(token_file, ".token"), ".", node, kTookPart);
}

// By the file system's clock, which whoever left it wrote by, and this machine's.
bool IsOld(const std::string& path) {
  struct stat found;
  return stat(path.c_str(), &found) == 0 &&
         absl::Now() - absl::TimeFromTimespec(found.st_mtim) > kLaunchEndKept;
}

void RemoveOldIn(const std::string& directory) {
  std::vector<std::string> old;
  DIR* const entries = opendir(directory.c_str());
  if (entries == nullptr) return;
  for (int i = 0; i < kSwept; ++i) {
    const dirent* const entry = readdir(entries);
    if (entry == nullptr) break;
    const std::string path = absl::StrCat(directory, "/", entry->d_name);
    const bool ours =
        absl::EndsWith(entry->d_name, kEnding) || absl::EndsWith(entry->d_name, kTookPart);
    if (ours && IsOld(path)) old.push_back(path);
  }
  closedir(entries);
  for (const std::string& path : old) unlink(path.c_str());
}

class LaunchLink final : public agent::ServerLink {
 public:
  LaunchLink(std::unique_ptr<agent::ServerLink> link, std::string token_file,
             std::function<void(const std::string&)> say)
      : link_(std::move(link)), token_file_(std::move(token_file)), say_(std::move(say)) {}

  void Start(agent::LinkCallbacks callbacks) override {
    agent::LinkCallbacks with_end = callbacks;
    with_end.on_up = [this, up = callbacks.on_up](uint64_t stream) {
      was_up_ = true;
      up(stream);
    };
    with_end.on_down = [this, callbacks](absl::Status status) {
      const absl::StatusOr<v1::Verdict> end = FindLaunchEnd(token_file_);
      // Nobody waits for a server that is known to be over.
      if (!end.ok() || was_up_) callbacks.on_down(std::move(status));
      if (end.ok()) callbacks.on_message(Finished(*end));
    };
    link_->Start(std::move(with_end));
  }
  void Send(uint64_t stream, v1::NodeMessage message) override {
    link_->Send(stream, std::move(message));
  }
  void Stop() override { link_->Stop(); }

 private:
  v1::ServerMessage Finished(const v1::Verdict& verdict) {
    if (!said_) {
      say_(absl::StrCat("job ", verdict.job(), " had ended before this node ",
                        was_up_ ? "was back" : "came", " (", rpc::PhaseName(verdict.outcome()),
                        ")"));
    }
    said_ = true;
    // Made again by this launcher, in the belief that it might be the first one.
    unlink(token_file_.c_str());
    v1::ServerMessage message;
    message.set_job(verdict.job());
    *message.mutable_finished()->mutable_verdict() = verdict;
    return message;
  }

  const std::unique_ptr<agent::ServerLink> link_;
  const std::string token_file_;
  const std::function<void(const std::string&)> say_;
  // Of the link's thread.
  bool was_up_ = false;
  bool said_ = false;
};

}  // namespace

absl::Status LeaveLaunchEnd(const std::string& token_file, const v1::Verdict& verdict) {
  const std::string path = PathBeside(token_file);
  const size_t end = path.rfind('/');
  if (end != path.npos) RemoveOldIn(path.substr(0, end));
  return agent::WriteFile(path, verdict.SerializeAsString());
}

void RemoveLaunchEnd(const std::string& token_file) { unlink(PathBeside(token_file).c_str()); }

void NoteTakenPart(const std::string& token_file, const std::string& node) {
  const std::string path = TookPartPath(token_file, node);
  // Without it the next run may take this one's end for its own, which it says then.
  agent::WriteFile(path, "").IgnoreError();
}

bool HasTakenPart(const std::string& token_file, const std::string& node) {
  return access(TookPartPath(token_file, node).c_str(), F_OK) == 0;
}

absl::StatusOr<v1::Verdict> FindLaunchEnd(const std::string& token_file) {
  const std::string path = PathBeside(token_file);
  v1::Verdict verdict;
  std::ifstream file(path, std::ios::binary);
  if (file && !IsOld(path) && verdict.ParseFromIstream(&file) &&
      verdict.outcome() != v1::JOB_PHASE_UNSPECIFIED) {
    return verdict;
  }
  return absl::NotFoundError(absl::StrCat("there is no ", path, " of this launch"));
}

std::unique_ptr<agent::ServerLink> MakeLaunchLink(std::unique_ptr<agent::ServerLink> link,
                                                  const std::string& token_file,
                                                  std::function<void(const std::string&)> say) {
  return std::make_unique<LaunchLink>(std::move(link), token_file, std::move(say));
}

}  // namespace cadre::launcher
