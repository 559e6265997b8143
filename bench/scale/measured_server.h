// The processes of the benchmark: a server under load, and the clients that load it.
#ifndef CADRE_BENCH_SCALE_MEASURED_SERVER_H_
#define CADRE_BENCH_SCALE_MEASURED_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tests/testing/process.h"

namespace cadre {

struct Programs {
  std::string cadre, bare_server, load, worker_load, tcp_store_peer;
  // Whether Cadre's servers and their clients use TLS.
  bool tls = false;
};

// Raises the limit of open files of this process and its children to the hard limit.
// RESOURCE_EXHAUSTED if that is below `needed`.
absl::Status RaiseOpenFiles(uint64_t needed);

class MeasuredServer {
 public:
  // Starts `cadre server` with its own token and state directory, which are deleted with it.
  static absl::StatusOr<std::unique_ptr<MeasuredServer>> StartCadre(const Programs& programs);
  // The same with the state in memory only.
  static absl::StatusOr<std::unique_ptr<MeasuredServer>> StartForgetful(const Programs& programs);
  static absl::StatusOr<std::unique_ptr<MeasuredServer>> StartBare(const Programs& programs);
  static absl::StatusOr<std::unique_ptr<MeasuredServer>> StartTcpStore(const Programs& programs);
  // Ends the server.
  ~MeasuredServer();

  int port() const { return port_; }
  std::string endpoint() const;
  const std::string& token_file() const { return token_file_; }

  // Runs scale_load on this server and returns the figures that it prints.
  absl::StatusOr<nlohmann::json> Load(const Programs& programs, const std::string& what,
                                      const std::vector<std::string>& arguments) const;
  // Returns the figures of workers that `cadre run` starts on one node.
  absl::StatusOr<nlohmann::json> LoadByWorkers(const Programs& programs, int clients,
                                               int seconds) const;

 private:
  MeasuredServer() = default;
  static absl::StatusOr<std::unique_ptr<MeasuredServer>> StartServer(const Programs& programs,
                                                                     bool keeps_state);
  absl::Status Start(const std::vector<std::string>& argv);

  std::string directory_;
  std::string token_file_;
  std::unique_ptr<Process> process_;
  int port_ = 0;
};

// Returns the figures of workers of a job that needs no other server than its launcher, `cadre run
// --standalone`.
absl::StatusOr<nlohmann::json> LoadStandalone(const Programs& programs, int clients, int seconds);

// Runs a program that prints JSON. If it fails, its standard error is the error's message.
absl::StatusOr<nlohmann::json> RunForJson(const std::vector<std::string>& argv);

}  // namespace cadre

#endif  // CADRE_BENCH_SCALE_MEASURED_SERVER_H_
