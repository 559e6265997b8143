#include "tests/testing/etcd_process.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/scoped_fd.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

constexpr char kEtcd[] = "/usr/bin/etcd";
// A port that was free a moment ago may be taken by another process now.
constexpr int kStarts = 5;
constexpr absl::Duration kStartTimeout = absl::Seconds(30);
constexpr absl::Duration kLook = absl::Milliseconds(20);
constexpr int kAnswerMs = 20000;

}  // namespace

bool EtcdProcess::IsInstalled() { return access(kEtcd, X_OK) == 0; }

EtcdProcess::EtcdProcess(std::string host, std::vector<std::string> command)
    : host_(std::move(host)), command_(std::move(command)), directory_(MakeTempDir("etcd")) {}

bool EtcdProcess::Start() {
  for (int i = 0; i < kStarts; ++i) {
    if (!served_) port_ = FreePort();
    Launch();
    if (AwaitServes()) return served_ = true;
  }
  ADD_FAILURE() << "etcd does not start: " << ReadFileOrEmpty(LogFile());
  return false;
}

// The log goes to a file, because a pipe is not read while the test does something else.
std::string EtcdProcess::LogFile() const { return absl::StrCat(directory_, "/log", starts_); }

void EtcdProcess::Launch() {
  ++starts_;
  const std::string peers =
      absl::StrCat("http://127.0.0.1:", peer_port_ != 0 ? peer_port_ : FreePort());
  ProcessOptions options;
  options.argv = command_;
  for (const std::string& argument : std::vector<std::string>{
           kEtcd, "--name", name_, "--data-dir", directory_ + "/data", "--logger", "zap",
           "--log-outputs", LogFile(), "--listen-client-urls", url(), "--advertise-client-urls",
           url(), "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
           "--initial-cluster",
           initial_cluster_.empty() ? absl::StrCat(name_, "=", peers) : initial_cluster_}) {
    options.argv.push_back(argument);
  }
  if (quota_ != 0) {
    options.argv.insert(options.argv.end(), {"--quota-backend-bytes", absl::StrCat(quota_)});
  }
  if (!tls_dir_.empty()) {
    for (const std::string& argument : std::vector<std::string>{
             "--client-cert-auth", "--trusted-ca-file", tls_dir_ + "/ca.pem", "--cert-file",
             tls_dir_ + "/cert.pem", "--key-file", tls_dir_ + "/key.pem"}) {
      options.argv.push_back(argument);
    }
  }
  auto process = Process::Start(options);
  if (process.ok()) {
    process_ = *std::move(process);
  } else {
    ADD_FAILURE() << process.status();
  }
}

bool EtcdProcess::AwaitServes() {
  const absl::Time until = absl::Now() + kStartTimeout;
  while (process_ != nullptr && absl::Now() < until && !process_->Wait(kLook).has_value()) {
    if (absl::StrContains(ReadFileOrEmpty(LogFile()), "serving client traffic")) return true;
  }
  return false;
}

void EtcdProcess::Kill() {
  process_->Kill(SIGKILL);
  EXPECT_EQ(process_->Wait(), 128 + SIGKILL);
  process_.reset();
}

void EtcdProcess::Pause() {
  process_->Kill(SIGSTOP);
  // Each thread stops at its next return to user mode; until then it may still answer.
  siginfo_t stopped = {};
  while (waitid(P_PID, static_cast<id_t>(process_->pid()), &stopped, WSTOPPED | WNOWAIT) < 0 &&
         errno == EINTR) {
  }
}

void EtcdProcess::Resume() { process_->Kill(SIGCONT); }

std::string EtcdProcess::endpoint() const { return absl::StrCat(host_, ":", port_); }

std::string EtcdProcess::url() const {
  return absl::StrCat(tls_dir_.empty() ? "http://" : "https://", endpoint());
}

std::string EtcdProcess::Post(const std::string& path, const std::string& json) const {
  const ScopedFd to(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port_));
  EXPECT_EQ(connect(to.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const std::string request =
      absl::StrCat("POST ", path, " HTTP/1.0\r\nContent-Length: ", json.size(), "\r\n\r\n", json);
  size_t sent = 0;
  while (sent < request.size()) {
    const ssize_t n = send(to.get(), request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) break;
    sent += static_cast<size_t>(n);
  }
  std::string answer;
  char bytes[4096];
  for (pollfd look = {to.get(), POLLIN, 0}; poll(&look, 1, kAnswerMs) == 1;) {
    const ssize_t n = recv(to.get(), bytes, sizeof(bytes), 0);
    if (n <= 0) break;
    answer.append(bytes, static_cast<size_t>(n));
  }
  EXPECT_FALSE(answer.empty()) << path;
  return answer;
}

std::string EtcdProcess::Field(const std::string& json, const std::string& name) {
  const std::string key = absl::StrCat("\"", name, "\":\"");
  const size_t at = json.find(key);
  if (at == json.npos) return "";
  const size_t begin = at + key.size();
  return json.substr(begin, json.find('"', begin) - begin);
}

EtcdCluster::EtcdCluster() {
  std::string cluster;
  for (size_t i = 0; i < kMembers; ++i) {
    auto member = std::make_unique<EtcdProcess>();
    member->name_ = absl::StrCat("member", i);
    member->port_ = FreePort();
    member->peer_port_ = FreePort();
    // The member must keep its ports, because they are in the other members' configuration.
    member->served_ = true;
    absl::StrAppend(&cluster, cluster.empty() ? "" : ",", member->name_,
                    "=http://127.0.0.1:", member->peer_port_);
    members_.push_back(std::move(member));
  }
  for (const auto& member : members_) {
    member->initial_cluster_ = cluster;
    member->Launch();
  }
  for (const auto& member : members_) {
    EXPECT_TRUE(member->AwaitServes()) << ReadFileOrEmpty(member->LogFile());
  }
}

std::string EtcdCluster::urls() const {
  std::string all;
  for (const auto& member : members_) absl::StrAppend(&all, all.empty() ? "" : ",", member->url());
  return all;
}

size_t EtcdCluster::Leader() const {
  for (size_t i = 0; i < kMembers; ++i) {
    if (members_[i]->process_ == nullptr) continue;
    const std::string status = members_[i]->Post("/v3/maintenance/status", "{}");
    const std::string leader = EtcdProcess::Field(status, "leader");
    if (!leader.empty() && leader == EtcdProcess::Field(status, "member_id")) return i;
  }
  return kMembers;
}

}  // namespace cadre
