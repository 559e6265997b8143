// A test with a directory of its own for an accounting file, and jobs to put into it.
#ifndef CADRE_RENDEZVOUS_ACCOUNTING_ACCOUNTING_FOR_TEST_H_
#define CADRE_RENDEZVOUS_ACCOUNTING_ACCOUNTING_FOR_TEST_H_

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "gtest/gtest.h"
#include "proto/accounting.pb.h"

namespace cadre::accounting {

inline constexpr int64_t kHourUs = 3600000000;
inline constexpr int64_t kDayMs = 86400000;

class AccountingRig : public testing::Test {
 protected:
  AccountingRig() {
    std::string pattern = testing::TempDir() + "/accountingXXXXXX";
    root_ = mkdtemp(pattern.data());
    path_ = root_ + "/accounting.sqlite";
  }
  ~AccountingRig() override { std::filesystem::remove_all(root_); }

  // A job of alice that ended at the given day, one hour after it came, on the nodes a and b, with
  // 2 GPUs and 4 CPUs on each.
  static v1::AccountedJob Job(uint64_t order, int64_t day = 1) {
    v1::AccountedJob job;
    job.set_server_id(77);
    job.set_ended_order(order);
    job.set_id(order + 100);
    job.set_name("train");
    job.set_user("alice");
    job.set_phase(v1::SUCCEEDED);
    job.set_submitted_unix_ms(day * kDayMs - 3600000);
    job.set_began_unix_ms(day * kDayMs - 3600000);
    job.set_ended_unix_ms(day * kDayMs);
    job.set_nodes("a,b");
    job.set_node_count(2);
    job.set_gpus(4);
    for (const char* const node : {"a", "b"}) {
      v1::NodeUse* use = job.add_node_uses();
      use->set_node(node);
      use->set_held_us(kHourUs);
      use->set_cpu_us(4 * kHourUs);
      use->set_gpu_us(2 * kHourUs);
    }
    job.set_held_us(2 * kHourUs);
    job.set_cpu_us(8 * kHourUs);
    job.set_gpu_us(4 * kHourUs);
    return job;
  }
  static void AddLost(v1::FailureCause cause, bool wasted, int64_t gpu_us, v1::AccountedJob* job) {
    v1::LostTime* lost = job->add_lost();
    lost->set_cause(cause);
    lost->set_wasted(wasted);
    lost->set_gpu_us(gpu_us);
    lost->set_cpu_us(2 * gpu_us);
    if (!wasted) lost->set_failures(1);
  }
  // One that failed.
  static v1::AccountedJob Failed(uint64_t order, v1::FailureCause cause) {
    v1::AccountedJob job = Job(order);
    job.set_phase(v1::FAILED);
    job.set_cause(cause);
    AddLost(cause, true, 4 * kHourUs, &job);
    return job;
  }

  std::string root_;
  std::string path_;
};

}  // namespace cadre::accounting

#endif  // CADRE_RENDEZVOUS_ACCOUNTING_ACCOUNTING_FOR_TEST_H_
