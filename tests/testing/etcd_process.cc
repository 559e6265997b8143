#include "tests/testing/etcd_process.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

constexpr char kEtcd[] = "/usr/bin/etcd";
// A port that was free a moment ago may be somebody's now.
constexpr int kStarts = 5;
constexpr absl::Duration kStartTimeout = absl::Seconds(30);
constexpr absl::Duration kLook = absl::Milliseconds(20);

}  // namespace

bool EtcdProcess::IsInstalled() { return access(kEtcd, X_OK) == 0; }

EtcdProcess::EtcdProcess(std::string host, std::vector<std::string> command)
    : host_(std::move(host)), command_(std::move(command)), directory_(MakeTempDir("etcd")) {}

bool EtcdProcess::Start() {
  for (int i = 0; i < kStarts; ++i) {
    if (!served_) port_ = FreePort();
    if (TryStart()) return served_ = true;
  }
  ADD_FAILURE() << "etcd does not start: " << ReadFileOrEmpty(LogFile());
  return false;
}

// To a file, because nobody reads a pipe while the test does something else.
std::string EtcdProcess::LogFile() const { return absl::StrCat(directory_, "/log", starts_); }

bool EtcdProcess::TryStart() {
  ++starts_;
  const std::string peers = absl::StrCat("http://127.0.0.1:", FreePort());
  ProcessOptions options;
  options.argv = command_;
  for (const std::string& argument : std::vector<std::string>{
           kEtcd, "--name", "test", "--data-dir", directory_ + "/data", "--logger", "zap",
           "--log-outputs", LogFile(), "--listen-client-urls", url(), "--advertise-client-urls",
           url(), "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
           "--initial-cluster", absl::StrCat("test=", peers)}) {
    options.argv.push_back(argument);
  }
  if (!tls_dir_.empty()) {
    for (const std::string& argument : std::vector<std::string>{
             "--client-cert-auth", "--trusted-ca-file", tls_dir_ + "/ca.pem", "--cert-file",
             tls_dir_ + "/cert.pem", "--key-file", tls_dir_ + "/key.pem"}) {
      options.argv.push_back(argument);
    }
  }
  auto process = Process::Start(options);
  if (!process.ok()) {
    ADD_FAILURE() << process.status();
    return false;
  }
  process_ = *std::move(process);
  const absl::Time until = absl::Now() + kStartTimeout;
  while (absl::Now() < until && !process_->Wait(kLook).has_value()) {
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
  // Each thread stops when it next looks: until then it may still answer.
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

}  // namespace cadre
