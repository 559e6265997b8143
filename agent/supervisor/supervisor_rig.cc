#include "agent/supervisor/supervisor_rig.h"

#include <dirent.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/supervisor/processes/pidfd.h"
#include "base/clock.h"
#include "base/scoped_fd.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace cadre::supervisor {

SupervisorRig::SupervisorRig(uint32_t frames_version) : frames_version_(frames_version) {
  // Not below TEST_TMPDIR, which may be too long for a socket's path.
  folder_ = "/tmp/cadre_rig_XXXXXX";
  EXPECT_NE(mkdtemp(&folder_[0]), nullptr);
  auto client = Client::Start(frames_version);
  EXPECT_THAT(client, IsOk());
  if (!client.ok()) abort();
  client_ = *std::move(client);
  Until([&] { return !frames.empty(); });
  if (!frames.empty()) ready_ = std::get<ReadyFrame>(frames.front());
}

SupervisorRig::~SupervisorRig() {
  client_.reset();
  dead_.clear();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void SupervisorRig::Die() {
  EXPECT_EQ(shutdown(client_->fd(), SHUT_WR), 0);
  pollfd noticed = {client_->fd(), POLLIN, 0};
  char chunk[4096];
  ssize_t n = 1;
  while (n > 0 &&
         poll(&noticed, 1, static_cast<int>(absl::ToInt64Milliseconds(kRigTimeout))) == 1) {
    n = recv(client_->fd(), chunk, sizeof(chunk), 0);
  }
  EXPECT_LE(n, 0) << "the supervisor holds on to an agent that is gone";
}

void SupervisorRig::Keep(absl::Duration time) {
  Send(KeepFrame{static_cast<uint32_t>(absl::ToInt64Milliseconds(time)), KeepPath(), kKeepToken});
}

AdoptedFrame SupervisorRig::Adopt() {
  AdoptedFrame inventory;
  frames.clear();
  auto client = Client::Adopt(KeepPath(), kKeepToken, frames_version_, &inventory, kRigTimeout);
  EXPECT_THAT(client, IsOk());
  if (!client.ok()) return inventory;
  dead_.push_back(std::move(client_));
  client_ = *std::move(client);
  // Frames may have come with the inventory.
  auto read = client_->Read();
  EXPECT_THAT(read, IsOk());
  if (read.ok()) frames = *std::move(read);
  return inventory;
}

StartFrame SupervisorRig::Shell(const std::string& script, uint64_t group) {
  StartFrame start;
  start.group = group;
  start.argv = {"sh", "-c", script};
  start.environment = {"PATH=/usr/bin:/bin"};
  start.working_dir = folder_;
  return start;
}

void SupervisorRig::Send(const Frame& frame) { EXPECT_OK(client_->Send(frame)); }

bool SupervisorRig::Pump(absl::Duration timeout) {
  const short writing = client_->WantsWrite() ? POLLOUT : 0;
  pollfd ready = {client_->fd(), static_cast<short>(POLLIN | writing), 0};
  if (poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout))) <= 0) return false;
  if ((ready.revents & POLLOUT) != 0) {
    EXPECT_OK(client_->Flush());
  }
  auto read = client_->Read();
  EXPECT_THAT(read, IsOk());
  if (!read.ok()) return false;
  frames.insert(frames.end(), read->begin(), read->end());
  return true;
}

bool SupervisorRig::Until(const std::function<bool()>& done) {
  const MonoTime end = MonoNow() + kRigTimeout;
  while (!done()) {
    const absl::Duration left = end - MonoNow();
    if (left <= absl::ZeroDuration() || !Pump(left)) {
      ADD_FAILURE() << "the supervisor did not say what was waited for";
      return false;
    }
  }
  return true;
}

bool SupervisorRig::UntilFiles(const std::function<bool()>& done, const std::string& other) const {
  const std::string& folder = other.empty() ? folder_ : other;
  ScopedFd changes(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  EXPECT_GE(inotify_add_watch(changes.get(), folder.c_str(), IN_CREATE | IN_MODIFY | IN_MOVED_TO),
            0);
  const MonoTime end = MonoNow() + kRigTimeout;
  char events[4096];
  while (!done()) {
    const absl::Duration left = end - MonoNow();
    pollfd ready = {changes.get(), POLLIN, 0};
    if (left <= absl::ZeroDuration() ||
        poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1) <= 0) {
      ADD_FAILURE() << "no file in " << folder << " became what was waited for";
      return false;
    }
    while (read(changes.get(), events, sizeof(events)) > 0) {
    }
  }
  return true;
}

std::optional<ExitedFrame> SupervisorRig::Exit(uint64_t group) const {
  for (const Frame& frame : frames) {
    const auto* exited = std::get_if<ExitedFrame>(&frame);
    if (exited != nullptr && exited->group == group) {
      return *exited;
    }
  }
  return std::nullopt;
}

std::optional<StartedFrame> SupervisorRig::Started(uint64_t group) const {
  for (const Frame& frame : frames) {
    const auto* started = std::get_if<StartedFrame>(&frame);
    if (started != nullptr && started->group == group) {
      return *started;
    }
  }
  return std::nullopt;
}

int SupervisorRig::AllGoneCount(uint64_t group) const {
  return static_cast<int>(std::count_if(frames.begin(), frames.end(), [&](const Frame& frame) {
    const auto* gone = std::get_if<AllGoneFrame>(&frame);
    return gone != nullptr && gone->group == group;
  }));
}

std::string SupervisorRig::Output(uint8_t stream, uint64_t group) const {
  std::string bytes;
  for (const Frame& frame : frames) {
    const auto* output = std::get_if<OutputFrame>(&frame);
    if (output != nullptr && output->stream == stream && output->group == group) {
      bytes += output->bytes;
    }
  }
  return bytes;
}

uint64_t SupervisorRig::Dropped(uint8_t stream, uint64_t group) const {
  uint64_t dropped = 0;
  for (const Frame& frame : frames) {
    const auto* output = std::get_if<OutputFrame>(&frame);
    if (output != nullptr && output->stream == stream && output->group == group) {
      dropped += output->dropped;
    }
  }
  return dropped;
}

ExitedFrame SupervisorRig::Run(const StartFrame& start) {
  Send(start);
  Until([&] { return Exit(start.group).has_value(); });
  return Exit(start.group).value_or(ExitedFrame{});
}

std::vector<std::string> SupervisorRig::Lines(size_t count, uint64_t group) {
  const auto enough = [&] {
    const std::string text = Output(1, group);
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) >= count;
  };
  std::vector<std::string> lines(count);
  if (!Until(enough)) return lines;
  lines = absl::StrSplit(Output(1, group), '\n');
  lines.resize(count);
  return lines;
}

void SupervisorRig::Stop(uint32_t grace_ms, uint64_t group) {
  Send(StopFrame{group, grace_ms});
  Until([&] { return AllGoneCount(group) > 0; });
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

void WriteFile(const std::string& path, const std::string& text, int mode) {
  std::ofstream(path, std::ios::binary) << text;
  EXPECT_EQ(chmod(path.c_str(), static_cast<mode_t>(mode)), 0);
}

bool WaitUntilDead(pid_t pid, absl::Duration timeout) {
  ScopedFd pidfd(OpenPidfd(pid));
  if (!pidfd.ok()) return true;
  pollfd exit = {pidfd.get(), POLLIN, 0};
  return poll(&exit, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout))) == 1;
}

std::vector<int> OpenDescriptors(pid_t pid) {
  std::vector<int> open;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), error)) {
    int fd = -1;
    if (absl::SimpleAtoi(entry.path().filename().string(), &fd)) open.push_back(fd);
  }
  std::sort(open.begin(), open.end());
  return open;
}

}  // namespace cadre::supervisor
