// A real etcd, of one member or three, with its data in directories of the test. One thread.
#ifndef CADRE_TESTS_TESTING_ETCD_PROCESS_H_
#define CADRE_TESTS_TESTING_ETCD_PROCESS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/process.h"

namespace cadre {

class EtcdProcess {
 public:
  // Where /usr/bin/etcd is not there, a test that needs it says so and is skipped.
  static bool IsInstalled();

  // `host`: where it listens. `command` goes before etcd's own, as in {"ip", "netns", "exec",
  // NAME}.
  explicit EtcdProcess(std::string host = "127.0.0.1", std::vector<std::string> command = {});

  // Before the first Start: clients must show a certificate. `directory` holds ca.pem, cert.pem and
  // key.pem, for etcd and its clients alike.
  void UseTls(std::string directory) { tls_dir_ = std::move(directory); }

  // Before the first Start: bytes that its database may take; 0: etcd's own 2 GiB.
  void SetQuota(int64_t bytes) { quota_ = bytes; }

  // Serves when it returns true; on the same port and with the same data as before, if there was a
  // time before. False comes with a test failure.
  bool Start();
  // SIGKILL, and waits for the end.
  void Kill();
  // SIGSTOP: connections stay, nothing is answered. SIGCONT.
  void Pause();
  void Resume();

  // host:port
  std::string endpoint() const;
  std::string url() const;

  // The answer of etcd's JSON interface (/v3/...); a test failure where there is none.
  std::string Post(const std::string& path, const std::string& json) const;
  // A field of such an answer whose value is in quotes; empty: there is none.
  static std::string Field(const std::string& json, const std::string& name);

 private:
  friend class EtcdCluster;

  void Launch();
  // The process was launched; whether it serves.
  bool AwaitServes();
  std::string LogFile() const;

  const std::string host_;
  const std::vector<std::string> command_;
  const std::string directory_;
  std::string tls_dir_;
  int64_t quota_ = 0;
  // Of a member of several.
  std::string name_ = "test";
  int peer_port_ = 0;
  std::string initial_cluster_;
  int port_ = 0;
  int starts_ = 0;
  bool served_ = false;
  std::unique_ptr<Process> process_;
};

// Three members, of which any two serve.
class EtcdCluster {
 public:
  static constexpr size_t kMembers = 3;

  // They serve when this has returned; a failure fails the test.
  EtcdCluster();

  EtcdProcess& member(size_t i) { return *members_[i]; }
  // Of all members.
  std::string urls() const;
  // The member that leads the others; kMembers: none says so.
  size_t Leader() const;

 private:
  std::vector<std::unique_ptr<EtcdProcess>> members_;
};

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_ETCD_PROCESS_H_
