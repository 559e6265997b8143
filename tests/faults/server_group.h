// Several `cadre server`s that share an etcd, and nodes that know all of them. One thread.
#ifndef CADRE_TESTS_FAULTS_SERVER_GROUP_H_
#define CADRE_TESTS_FAULTS_SERVER_GROUP_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/end_to_end/launch.h"
#include "tests/testing/etcd_process.h"

namespace cadre {

// Goes on until a file is there; see store_worker.cc.
inline constexpr char kStoreWorker[] = "tests/faults/store_worker";

// A new leader that is not there within this is too late.
inline constexpr absl::Duration kNewLeaderWithin = absl::Seconds(5);

class ServerGroup {
 public:
  // Nothing runs yet. `etcd_urls`: of an etcd that is not this object's.
  explicit ServerGroup(size_t servers, std::string etcd_urls = "");

  EtcdProcess& etcd() { return etcd_; }
  Process& server(size_t i) { return *servers_[i]; }
  // "127.0.0.1:PORT"
  std::string endpoint(size_t i) const;
  std::string endpoints() const;
  const std::string& token_file() const { return token_file_; }

  // Serves, in reserve or as the leader. `kill` is an order for KillAtCommit().
  bool Start(size_t i, const std::string& kill = "");
  // Whether it says that it leads within `timeout`.
  bool AwaitLeads(size_t i, absl::Duration timeout = absl::Seconds(20));
  // SIGKILL, and waits for the end.
  void Kill(size_t i);
  // As mortal_server.h: whether it died by itself.
  bool WaitDead(size_t i, absl::Duration timeout);

  // One node, of two workers, of job "job".
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
