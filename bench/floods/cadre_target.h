// A server of Cadre with an agent, a submitted job and a job with strict fencing, whose workers are
// killed when its lease is not renewed.
#ifndef CADRE_BENCH_FLOODS_CADRE_TARGET_H_
#define CADRE_BENCH_FLOODS_CADRE_TARGET_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/floods/target.h"
#include "tests/testing/process.h"

namespace cadre {

class CadreTarget final : public Target {
 public:
  // `cadre` is the path of the program.
  explicit CadreTarget(std::string cadre) : cadre_(std::move(cadre)) {}
  ~CadreTarget() override;

  std::string name() const override { return "Cadre"; }
  absl::Status Start() override;
  std::vector<FloodCase> Cases() const override;
  pid_t pid() const override { return server_->pid(); }
  absl::Status Launch(int number, absl::Duration timeout) override;
  absl::Status KeptCall(absl::Duration timeout) override;
  absl::Status NewCall(absl::Duration timeout) override;
  std::vector<std::string> Lost() override;

 private:
  absl::Status StartServer();
  absl::Status TryStartServer(const std::string& log);
  absl::Status MakeTokens();
  // Makes a token from the cluster's token, with these flags.
  absl::StatusOr<std::string> MakeToken(const std::string& file,
                                        const std::vector<std::string>& flags) const;
  absl::Status StartJobs();
  // Submits jobs that wait in the queue, so that the list of jobs is long.
  absl::Status FillQueue();
  void AppendCalls(const std::string& token_text, const std::string& token,
                   std::vector<FloodCase>* cases) const;
  std::string InDirectory(const std::string& name) const { return directory_ + "/" + name; }
  std::string endpoint() const;

  const std::string cadre_;
  std::string directory_;
  std::string server_log_;
  int port_ = 0;
  int http_port_ = 0;
  std::string read_token_, user_token_, honest_token_;
  std::string user_;
  std::unique_ptr<Process> server_, agent_, strict_job_;
  std::optional<HonestCaller> kept_, fresh_;
};

}  // namespace cadre

#endif  // CADRE_BENCH_FLOODS_CADRE_TARGET_H_
