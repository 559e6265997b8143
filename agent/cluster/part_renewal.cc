#include "agent/cluster/part_renewal.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/bearer_token.h"
#include "base/text.h"
#include "rpc/tls/pem_files.h"

namespace cadre::agent {
namespace {

constexpr std::chrono::seconds kInterval(1);
constexpr size_t kFileBytesMax = 1 << 20;

struct PartFile {
  std::string content;
  UserEntry owner;  // its numbers alone
};

// The part's user can have made anything of its content, and nothing else of it.
std::optional<PartFile> Read(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  PartFile file;
  struct stat info;
  if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) {
    file.owner.uid = info.st_uid;
    file.owner.gid = info.st_gid;
    char block[4096];
    ssize_t got = 0;
    while (file.content.size() < kFileBytesMax && (got = read(fd, block, sizeof(block))) > 0) {
      file.content.append(block, static_cast<size_t>(got));
    }
  }
  close(fd);
  return file;
}

// In one step. False: the launcher goes on with what it has, and the next look tries again.
bool Replace(const std::string& path, const PartFile& file) {
  const std::string fresh = path + ".new";
  unlink(fresh.c_str());
  if (WritePrivate(fresh, file.content, file.owner).ok() &&
      rename(fresh.c_str(), path.c_str()) == 0) {
    return true;
  }
  unlink(fresh.c_str());
  return false;
}

}  // namespace

PartRenewal::PartRenewal(PartStartOptions options, std::function<void(const std::string&)> log)
    : options_(std::move(options)), log_(std::move(log)), token_(options_.token->Current()) {}

void PartRenewal::Start() {
  thread_.emplace(kInterval, [this] { Look(); });
}

void PartRenewal::Look() {
  const std::string now = options_.token->Current();
  if (now != token_) former_.push_back(std::exchange(token_, now));
  std::string ca;
  if (!options_.tls_dir.empty()) {
    const auto files = files_.ResultWithin(kStandsStillAfter, [dir = options_.tls_dir] {
      return rpc::ReadPemFiles(dir, /*own=*/false);
    });
    if (files.has_value() && files->ok()) ca = (*files)->ca;
  }
  if (former_.empty() && ca.empty()) return;
  size_t renewed = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(options_.directory, error)) {
    if (!absl::StartsWith(entry.path().filename().string(), "part-")) continue;
    if (RenewToken(entry.path().string())) ++renewed;
    const std::string path = absl::StrCat(entry.path().string(), "/", kPartCa);
    std::optional<PartFile> given = ca.empty() ? std::nullopt : Read(path);
    if (!given.has_value() || given->content == ca) continue;
    given->content = ca;
    Replace(path, *given);
  }
  if (renewed > 0 && log_) {
    log_(absl::StrCat("the token was replaced: ", Count(renewed, "launcher"),
                      " here got a new one as well"));
  }
}

bool PartRenewal::RenewToken(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kPartToken);
  std::optional<PartFile> given = former_.empty() ? std::nullopt : Read(path);
  if (!given.has_value()) return false;
  const absl::string_view text = absl::StripSuffix(given->content, "\n");
  for (const std::string& secret : former_) {
    // What this agent has signed, and nothing else that stands there.
    const std::optional<Bearer> bearer = BearerOf(secret, text);
    if (!bearer.has_value() || bearer->kind != Bearer::Kind::kPart) continue;
    given->content =
        absl::StrCat(PartToken(token_, bearer->server_id, bearer->part, bearer->job), "\n");
    return Replace(path, *given);
  }
  return false;
}

}  // namespace cadre::agent
