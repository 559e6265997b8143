// For tests that share one Slurm cluster.
#ifndef CADRE_TESTS_TESTING_SLURM_FIXTURE_H_
#define CADRE_TESTS_TESTING_SLURM_FIXTURE_H_

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/testing/slurm_cluster.h"

namespace cadre {

// Starts the cluster before the first test; each is skipped where this machine lacks what that
// takes.
class SlurmFixture : public testing::Test {
 protected:
  static void SetUpTestSuite();
  void SetUp() override;

  static SlurmCluster* cluster_;

 private:
  static absl::Status* started_;
};

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_SLURM_FIXTURE_H_
