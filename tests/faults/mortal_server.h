// A `cadre server` with a state directory, which tests kill and start again; and a client of its
// store that repeats a request until it is answered, as an agent does. One thread.
#ifndef CADRE_TESTS_FAULTS_MORTAL_SERVER_H_
#define CADRE_TESTS_FAULTS_MORTAL_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "proto/store.grpc.pb.h"
#include "tests/testing/launch.h"

namespace cadre {

// The limit of the time from the start of a server until it serves.
inline constexpr absl::Duration kBackWithin = absl::Seconds(2);

class MortalServer {
 public:
  // Its state is at `state_dir`, or in a directory of its own.
  explicit MortalServer(const std::string& state_dir = "");

  int port() const { return port_; }
  const std::string& state_dir() const { return state_dir_; }
  const std::string& token_file() const { return token_file_; }
  std::string endpoint() const;

  // Starts it; false, with a test failure, if it does not serve in time. `kill` is an order for
  // KillAtCommit().
  bool Start(const std::string& kill = "");
  // Sends SIGKILL and waits until it has ended.
  void Kill();
  // Returns whether it died by itself within `timeout`.
  bool WaitDead(absl::Duration timeout);
  bool running() const { return process_ != nullptr; }
  Process& process() { return *process_; }
  // The longest time that a start took.
  absl::Duration slowest_start() const { return slowest_start_; }

  // Starts one node, with two workers, of job "job".
  std::unique_ptr<Process> StartNode(int node, const std::string& nnodes,
                                     const std::vector<std::string>& more = {});

 private:
  const int port_;
  const std::string state_dir_;
  const std::string token_file_;
  std::unique_ptr<Process> process_;
  absl::Duration slowest_start_;
};

class StoreClient {
 public:
  StoreClient(const MortalServer& server, std::string job, uint64_t client);

  // Adds 1 and returns the sum. Repeats the same request until it is answered.
  absl::StatusOr<int64_t> Add(const std::string& key, uint64_t request_id);

 private:
  absl::StatusOr<v1::StoreReply> Ask(const v1::StoreRequest& request);

  std::string token_;
  std::string job_;
  uint64_t client_;
  std::unique_ptr<v1::Store::Stub> stub_;
};

}  // namespace cadre

#endif  // CADRE_TESTS_FAULTS_MORTAL_SERVER_H_
