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
  // Cadre's servers, and who calls them, speak TLS.
  bool tls = false;
};

// Lets this process and its children open as many files as they may. RESOURCE_EXHAUSTED when that
// is fewer than `needed`.
absl::Status RaiseOpenFiles(uint64_t needed);

class MeasuredServer {
 public:
  // `cadre server` with a token and a state directory of its own, which goes with it.
  static absl::StatusOr<std::unique_ptr<MeasuredServer>> StartCadre(const Programs& programs);
  // The same, with its state in memory only.
  static absl::StatusOr<std::unique_ptr<MeasuredServer>> StartForgetful(const Programs& programs);
  static absl::StatusOr<std::unique_ptr<MeasuredServer>> StartBare(const Programs& programs);
  static absl::StatusOr<std::unique_ptr<MeasuredServer>> StartTcpStore(const Programs& programs);
  // Ends it.
  ~MeasuredServer();

  int port() const { return port_; }
  std::string endpoint() const;
  const std::string& token_file() const { return token_file_; }

  // Figures that scale_load prints about this server.
  absl::StatusOr<nlohmann::json> Load(const Programs& programs, const std::string& what,
                                      const std::vector<std::string>& arguments) const;
  // Figures of workers that `cadre run` starts on one node.
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

// Figures of workers of a job that needs no other server than its launcher, `cadre run
// --standalone`.
absl::StatusOr<nlohmann::json> LoadStandalone(const Programs& programs, int clients, int seconds);

// Runs a program that prints JSON. What it said on standard error is the error's text.
absl::StatusOr<nlohmann::json> RunForJson(const std::vector<std::string>& argv);

}  // namespace cadre

#endif  // CADRE_BENCH_SCALE_MEASURED_SERVER_H_
