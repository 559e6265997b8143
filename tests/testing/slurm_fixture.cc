#include "tests/testing/slurm_fixture.h"

#include "base/status_matchers.h"

namespace cadre {

SlurmCluster* SlurmFixture::cluster_;
absl::Status* SlurmFixture::started_;

void SlurmFixture::SetUpTestSuite() {
  cluster_ = new SlurmCluster;
  started_ = new absl::Status(cluster_->Start());
}

void SlurmFixture::SetUp() {
  if (absl::IsPermissionDenied(*started_) || absl::IsNotFound(*started_)) {
    GTEST_SKIP() << started_->message();
  }
  ASSERT_OK(*started_);
}

}  // namespace cadre
