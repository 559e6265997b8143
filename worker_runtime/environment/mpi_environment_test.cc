#include "worker_runtime/environment/mpi_environment.h"

#include <map>
#include <variant>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::environment {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class MpiEnvironmentTest : public ::testing::Test {
 protected:
  GetVariable Get() {
    return [this](const char* name) -> const char* {
      const auto found = variables_.find(name);
      return found == variables_.end() ? nullptr : found->second.c_str();
    };
  }
  Result<Launch> Read() { return ReadMpiEnvironment(Get()); }

  // Of the third of four processes on two nodes, as Open MPI 4.1 has them.
  std::map<std::string, std::string> variables_ = {
      {"OMPI_COMM_WORLD_RANK", "2"},
      {"OMPI_COMM_WORLD_SIZE", "4"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
      {"PMIX_NAMESPACE", "425263105"},
      {"OMPI_MCA_orte_local_daemon_uri",
       "425263104.1;tcp://10.77.0.2,10.1.0.2:41357;tcp6://[fe80::1]:4321"}};
};

TEST_F(MpiEnvironmentTest, ReadsWhatMpirunSays) {
  ASSERT_TRUE(StartedByMpi(Get()));
  const auto mpi = Read();
  ASSERT_OK(mpi);
  EXPECT_EQ(mpi->name, "mpi-425263105");
  EXPECT_EQ(std::get<ThroughFile>(mpi->meeting).name, "mpi-425263105");
  EXPECT_EQ(mpi->rank, 2);
  EXPECT_EQ(mpi->world_size, 4);
  EXPECT_EQ(mpi->local_rank, 0);
  EXPECT_EQ(mpi->local_world_size, 2);
  EXPECT_EQ(std::get<ThroughFile>(mpi->meeting).address, "10.77.0.2");
  EXPECT_EQ(mpi->one_node, false);
  variables_.erase("OMPI_COMM_WORLD_RANK");
  EXPECT_FALSE(StartedByMpi(Get()));
}

TEST_F(MpiEnvironmentTest, OneNodeNeedsNoAddress) {
  variables_["OMPI_COMM_WORLD_SIZE"] = "3";
  variables_["OMPI_COMM_WORLD_LOCAL_SIZE"] = "3";
  variables_.erase("OMPI_MCA_orte_local_daemon_uri");
  const auto mpi = Read();
  ASSERT_OK(mpi);
  EXPECT_EQ(mpi->one_node, true);
  EXPECT_EQ(std::get<ThroughFile>(mpi->meeting).address, "127.0.0.1");
}

TEST_F(MpiEnvironmentTest, SeveralNodesNeedOne) {
  for (const char* uri : {"", "425263104.1;tcp6://[fe80::1]:4321"}) {
    variables_["OMPI_MCA_orte_local_daemon_uri"] = uri;
    EXPECT_THAT(Read(), StatusIs(StatusCode::kFailedPrecondition,
                                 AllOf(HasSubstr("address"), HasSubstr("cadre run"))));
  }
}

TEST_F(MpiEnvironmentTest, TheLaunchIsAFilesName) {
  variables_["PMIX_NAMESPACE"] = "../prterun-host@1/x y";
  const auto mpi = Read();
  ASSERT_OK(mpi);
  EXPECT_EQ(mpi->name, "mpi-.._prterun-host@1_x_y");
  variables_.erase("PMIX_NAMESPACE");
  EXPECT_THAT(Read(), StatusIs(StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("PMIX_NAMESPACE"), HasSubstr("cadre run"))));
}

TEST_F(MpiEnvironmentTest, NamesWhatMakesNoSense) {
  variables_["OMPI_COMM_WORLD_SIZE"] = "many";
  EXPECT_THAT(Read(), StatusIs(StatusCode::kInvalidArgument,
                               HasSubstr("OMPI_COMM_WORLD_SIZE is \"many\"")));
  variables_["OMPI_COMM_WORLD_SIZE"] = "2";
  EXPECT_THAT(Read(), StatusIs(StatusCode::kInvalidArgument, HasSubstr("contradict each other")));
  variables_.erase("OMPI_COMM_WORLD_SIZE");
  EXPECT_THAT(Read(), StatusIs(StatusCode::kFailedPrecondition,
                               HasSubstr("OMPI_COMM_WORLD_SIZE is not set")));
}

}  // namespace
}  // namespace cadre::environment
