// Several `cadre server`s that share an etcd, and nodes that know all of them. One thread.
#ifndef CADRE_TESTS_FAULTS_SERVER_GROUP_H_
#define CADRE_TESTS_FAULTS_SERVER_GROUP_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/testing/etcd_process.h"
#include "tests/testing/launch.h"

namespace cadre {

// A worker that runs until a file exists; see store_worker.cc.
inline constexpr char kStoreWorker[] = "tests/faults/store_worker";

// The limit of the time until there is a new leader.
inline constexpr absl::Duration kNewLeaderWithin = absl::Seconds(5);

class ServerGroup {
 public:
  // Starts nothing yet. `etcd_urls`: another etcd than this object's own.
  explicit ServerGroup(size_t servers, std::string etcd_urls = "");

  EtcdProcess& etcd() { return etcd_; }
  Process& server(size_t i) { return *servers_[i]; }
  // "127.0.0.1:PORT"
  std::string endpoint(size_t i) const;
  std::string endpoints() const;
  const std::string& token_file() const { return token_file_; }

  // Starts a server, as a standby or as the leader. `kill` is an order for KillAtCommit().
  bool Start(size_t i, const std::string& kill = "");
  // Returns whether it reports within `timeout` that it leads.
  bool AwaitLeads(size_t i, absl::Duration timeout = absl::Seconds(20));
  // Sends SIGKILL and waits until it has ended.
  void Kill(size_t i);
  // Returns whether it died by itself, like MortalServer::WaitDead.
  bool WaitDead(size_t i, absl::Duration timeout);

  // Starts one node, with two workers, of job "job".
  std::unique_ptr<Process> StartNode(int node, const std::string& nnodes,
                                     const std::vector<std::string>& more);

 private:
  EtcdProcess etcd_;
  const std::string etcd_urls_;
  std::string token_file_;
  std::vector<int> ports_;
  std::vector<std::unique_ptr<Process>> servers_;
};

}  // namespace cadre

#endif  // CADRE_TESTS_FAULTS_SERVER_GROUP_H_
