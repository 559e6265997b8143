// A real etcd of one member or three, with its data in directories of the test. One thread.
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
  // Whether /usr/bin/etcd exists; a test that needs it is skipped with a message if not.
  static bool IsInstalled();

  // `host` is the address on which it listens. `command` is put before etcd's own command line, as
  // in {"ip", "netns", "exec", NAME}.
  explicit EtcdProcess(std::string host = "127.0.0.1", std::vector<std::string> command = {});

  // Must be called before the first Start: clients then have to present a certificate. `directory`
  // holds ca.pem, cert.pem and key.pem, for etcd and its clients alike.
  void UseTls(std::string directory) { tls_dir_ = std::move(directory); }

  // Must be called before the first Start: the limit of the database in bytes; 0 is etcd's own 2
  // GiB.
  void SetQuota(int64_t bytes) { quota_ = bytes; }

  // Starts etcd, after a Kill on the same port and with the same data. Returns true once it serves;
  // false comes with a test failure.
  bool Start();
  // Sends SIGKILL and waits for the end.
  void Kill();
  // Pause sends SIGSTOP (connections stay, requests are not answered), Resume SIGCONT.
  void Pause();
  void Resume();

  // Returns host:port.
  std::string endpoint() const;
  std::string url() const;

  // Returns the answer of etcd's JSON interface (/v3/...); an error fails the test.
  std::string Post(const std::string& path, const std::string& json) const;
  // Returns a field of such an answer whose value is in quotes, or "" if there is none.
  static std::string Field(const std::string& json, const std::string& name);

 private:
  friend class EtcdCluster;

  void Launch();
  // The process was launched; returns whether it serves.
  bool AwaitServes();
  std::string LogFile() const;

  const std::string host_;
  const std::vector<std::string> command_;
  const std::string directory_;
  std::string tls_dir_;
  int64_t quota_ = 0;
  // Set for a member of a cluster of several.
  std::string name_ = "test";
  int peer_port_ = 0;
  std::string initial_cluster_;
  int port_ = 0;
  int starts_ = 0;
  bool served_ = false;
  std::unique_ptr<Process> process_;
};

// Three members; any two of them form a quorum.
class EtcdCluster {
 public:
  static constexpr size_t kMembers = 3;

  // Returns when all members serve; an error fails the test.
  EtcdCluster();

  EtcdProcess& member(size_t i) { return *members_[i]; }
  // Returns the URLs of all members.
  std::string urls() const;
  // Returns the index of the leader, or kMembers if no member reports that it leads.
  size_t Leader() const;

 private:
  std::vector<std::unique_ptr<EtcdProcess>> members_;
};

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_ETCD_PROCESS_H_
