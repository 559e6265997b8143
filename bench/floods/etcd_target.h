// An etcd of one member, with a key that is bound to a lease of 10 s, as the job of a server.
#ifndef CADRE_BENCH_FLOODS_ETCD_TARGET_H_
#define CADRE_BENCH_FLOODS_ETCD_TARGET_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bench/floods/target.h"
#include "tests/testing/process.h"

namespace cadre {

class EtcdTarget final : public Target {
 public:
  EtcdTarget() = default;
  ~EtcdTarget() override;

  std::string name() const override { return "etcd"; }
  absl::Status Start() override;
  std::vector<FloodCase> Cases() const override;
  pid_t pid() const override { return process_->pid(); }
  // Writes and reads the key, each on a new connection, as a command would.
  absl::Status Launch(int number, absl::Duration timeout) override;
  absl::Status KeptCall(absl::Duration timeout) override;
  absl::Status NewCall(absl::Duration timeout) override;
  std::vector<std::string> Lost() override;

 private:
  absl::Status StartProcess();
  absl::Status GrantLease();
  void KeepLease();

  std::string directory_;
  int port_ = 0;
  std::unique_ptr<Process> process_;
  int64_t lease_ = 0;
  std::optional<HonestCaller> launching_, kept_, fresh_;
  std::atomic<bool> stop_{false};
  std::thread keeper_;
};

}  // namespace cadre

#endif  // CADRE_BENCH_FLOODS_ETCD_TARGET_H_
