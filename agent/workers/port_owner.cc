#include "agent/workers/port_owner.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/text.h"

namespace cadre::agent {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kListens = "0A";
constexpr size_t kMaxName = 64;

struct Listener {
  std::string inode;
  std::string user;
};

// As the kernel's tables have it.
std::string InHex(const std::string& address) {
  in_addr v4 = {};
  in6_addr v6 = {};
  if (inet_pton(AF_INET, address.c_str(), &v4) == 1) return absl::StrFormat("%08X", v4.s_addr);
  if (inet_pton(AF_INET6, address.c_str(), &v6) != 1) return "";
  std::string text;
  for (const uint32_t word : v6.s6_addr32) absl::StrAppendFormat(&text, "%08X", word);
  return text;
}

std::optional<Listener> FindListener(const std::string& address, uint16_t port) {
  const std::string wanted = InHex(address);
  const std::string suffix = absl::StrFormat(":%04X", port);
  for (const char* const table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    while (std::getline(file, line)) {
      const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
      // Number, own address, the other's, state, queues, timer, retransmits, user, timeout, inode.
      if (words.size() < 10 || words[3] != kListens || !absl::EndsWith(words[1], suffix)) continue;
      const absl::string_view at = words[1].substr(0, words[1].size() - suffix.size());
      const bool all_addresses = at.find_first_not_of('0') == at.npos;
      if (!wanted.empty() && !all_addresses && at != wanted) continue;
      return Listener{std::string(words[9]), std::string(words[7])};
    }
  }
  return std::nullopt;
}

bool Has(const fs::path& process, const std::string& socket) {
  std::error_code error;
  for (fs::directory_iterator fd(process / "fd", error), end; !error && fd != end;
       fd.increment(error)) {
    std::error_code gone;
    if (fs::read_symlink(fd->path(), gone) == socket) return true;
  }
  return false;
}

}  // namespace

std::string WhoListensAt(const std::string& address, uint16_t port) {
  const std::optional<Listener> listener = FindListener(address, port);
  if (!listener.has_value()) return "";
  const std::string socket = absl::StrCat("socket:[", listener->inode, "]");
  std::error_code error;
  for (fs::directory_iterator process("/proc", error), end; !error && process != end;
       process.increment(error)) {
    int pid = 0;
    if (!absl::SimpleAtoi(process->path().filename().string(), &pid)) continue;
    if (!Has(process->path(), socket)) continue;
    std::string name;
    std::ifstream comm(process->path() / "comm");
    std::getline(comm, name);
    return absl::StrCat(OneLine(name, kMaxName), name.empty() ? "pid " : " (pid ", pid,
                        name.empty() ? "" : ")");
  }
  return absl::StrCat("a process of user id ", listener->user);
}

}  // namespace cadre::agent
