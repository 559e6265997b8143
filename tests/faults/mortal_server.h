// `cadre server` with a state directory, to be killed and started again; and a client of its store
// that asks until it is answered, as an agent does. One thread.
#ifndef CADRE_TESTS_FAULTS_MORTAL_SERVER_H_
#define CADRE_TESTS_FAULTS_MORTAL_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "proto/store.grpc.pb.h"
#include "tests/end_to_end/launch.h"

namespace cadre {

// A server that does not serve within this after its start is too late.
inline constexpr absl::Duration kBackWithin = absl::Seconds(2);

class MortalServer {
 public:
  // Its state is at `state_dir`, or in a directory of its own.
  explicit MortalServer(const std::string& state_dir = "");

  int port() const { return port_; }
  const std::string& state_dir() const { return state_dir_; }
  const std::string& token_file() const { return token_file_; }
  std::string endpoint() const;

  // Starts it; false, with a test failure, when it does not serve in time. `kill` is an order for
  // KillAtCommit().
  bool Start(const std::string& kill = "");
  // SIGKILL, and waits for the end.
  void Kill();
  // Whether it died by itself within `timeout`.
  bool WaitDead(absl::Duration timeout);
  bool running() const { return process_ != nullptr; }
  Process& process() { return *process_; }
  // The longest that a start took.
  absl::Duration slowest_start() const { return slowest_start_; }

  // One node, of two workers, of job "job".
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

  // The sum after adding 1. The same request is made again for as long as nobody answers.
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
