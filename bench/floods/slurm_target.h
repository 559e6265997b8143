// A slurmctld with two slurmd and a running job. Usable inside RunAmongThemselves only.
#ifndef CADRE_BENCH_FLOODS_SLURM_TARGET_H_
#define CADRE_BENCH_FLOODS_SLURM_TARGET_H_

#include <string>
#include <vector>

#include "bench/floods/target.h"
#include "tests/testing/slurm_cluster.h"

namespace cadre {

class SlurmTarget final : public Target {
 public:
  std::string name() const override { return "Slurm"; }
  absl::Status Start() override;
  std::vector<FloodCase> Cases() const override;
  pid_t pid() const override { return pid_; }
  absl::Status Launch(int number, absl::Duration timeout) override;
  // Each command of Slurm opens a new connection.
  absl::Status KeptCall(absl::Duration timeout) override;
  absl::Status NewCall(absl::Duration timeout) override;
  std::vector<std::string> Lost() override;

 private:
  SlurmCluster cluster_;
  pid_t pid_ = 0;
  std::string job_;
};

}  // namespace cadre

#endif  // CADRE_BENCH_FLOODS_SLURM_TARGET_H_
