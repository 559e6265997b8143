#include "tests/testing/node_network.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "tests/testing/process.h"

namespace cadre {
namespace {

// The directory in which `ip netns` keeps the names.
constexpr char kNames[] = "/run/netns";

absl::Status Ip(const std::string& arguments) {
  ProcessOptions options;
  options.argv = {"ip"};
  for (const absl::string_view word : absl::StrSplit(arguments, ' ')) {
    options.argv.emplace_back(word);
  }
  const auto process = RunToEnd(options);
  RETURN_IF_ERROR(process.status());
  if ((*process)->Wait() == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("ip ", arguments, ": ", (*process)->standard_error()));
}

}  // namespace

absl::Status NodeNetwork::Enter() {
  if (unshare(CLONE_NEWNET | CLONE_NEWNS) != 0) {
    return absl::PermissionDeniedError("needs root, for network namespaces");
  }
  // Mounts made here must not be visible outside.
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("needs mounts of its own, for network namespaces: mount /: ", strerror(errno),
                     errno == EINVAL ? "; in a chroot, / is not where anything is mounted" : ""));
  }
  mkdir(kNames, 0755);
  if (mount("none", kNames, "tmpfs", 0, "size=1m") != 0) return absl::ErrnoToStatus(errno, kNames);
  // A bridge without an address of its own takes the lowest MAC address of its ports, and so
  // changes it whenever a node with a lower one is added; nodes that knew the old one then cannot
  // reach this process for some 8 s.
  for (const char* command :
       {"link set lo up", "link add bridge address 02:00:00:00:00:01 type bridge",
        "link set bridge up"}) {
    RETURN_IF_ERROR(Ip(command));
  }
  return Ip(absl::StrCat("address add ", kBridgeAddress, "/24 dev bridge"));
}

absl::Status NodeNetwork::EnterWith(int nodes) {
  absl::Status status = Enter();
  for (int node = 1; status.ok() && node <= nodes; ++node) status = Add(node);
  return status;
}

absl::Status NodeNetwork::Add(int node) {
  const std::string name = NameOf(node);
  RETURN_IF_ERROR(Ip(absl::StrCat("netns add ", name)));
  RETURN_IF_ERROR(Ip(absl::StrCat("link add ", name, " type veth peer name eth0 netns ", name)));
  RETURN_IF_ERROR(Ip(absl::StrCat("link set ", name, " master bridge")));
  RETURN_IF_ERROR(Ip(absl::StrCat("link set ", name, " up")));
  RETURN_IF_ERROR(Ip(absl::StrCat("-netns ", name, " link set lo up")));
  RETURN_IF_ERROR(
      Ip(absl::StrCat("-netns ", name, " address add ", AddressOf(node), "/24 dev eth0")));
  return Ip(absl::StrCat("-netns ", name, " link set eth0 up"));
}

absl::Status NodeNetwork::SetLink(int node, bool up) {
  return Ip(absl::StrCat("link set ", NameOf(node), up ? " up" : " down"));
}

absl::Status NodeNetwork::NameNodes(const std::vector<std::string>& names) {
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  const std::string path = absl::StrCat(MakeTempDir("names"), "/hosts");
  {
    std::ofstream file(path);
    file << "127.0.0.1 localhost\n" << kBridgeAddress << " " << host << "\n";
    for (size_t i = 0; i < names.size(); ++i) {
      file << AddressOf(static_cast<int>(i) + 1) << " " << names[i] << "\n";
    }
  }
  if (mount(path.c_str(), "/etc/hosts", nullptr, MS_BIND, nullptr) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, "mount /etc/hosts");
}

std::string NodeNetwork::NameOf(int node) { return absl::StrCat("node", node); }

std::string NodeNetwork::AddressOf(int node) { return absl::StrCat("10.77.0.", node); }

std::vector<std::string> NodeNetwork::Inside(int node) {
  return {"ip", "netns", "exec", NameOf(node)};
}

}  // namespace cadre
