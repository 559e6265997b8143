// Runs as on a machine without NCCL. It is a test of its own because a process loads the library
// only once.
#include <stdlib.h>

#include <string>

#include "base/status_matchers.h"
#include "cadre/nccl/connect.h"
#include "cadre/nccl/unique_id.h"
#include "worker_runtime/nccl/nccl_api.h"
#include "worker_runtime/nccl/nccl_communicator.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre::nccl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(NcclMissingTest, SaysWhereItWasLookedForAndWhatToDo) {
  setenv("CADRE_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
  const auto says_where =
      StatusIs(StatusCode::kNotFound,
               AllOf(HasSubstr("NCCL was not found as /nowhere/libnccl.so.2"),
                     HasSubstr("cannot open shared object file"), HasSubstr("CADRE_NCCL_LIBRARY")));
  testing::InProcessWorkers workers(1);
  const Status connected = ConnectNccl(workers.worker(0), {}).status();
  if (connected.code() == StatusCode::kUnimplemented) {
    EXPECT_THAT(std::string(connected.message()), HasSubstr("nccl.h"));
    GTEST_SKIP() << connected;
  }
  EXPECT_THAT(connected, says_where);
  EXPECT_THAT(MintNcclUniqueId(), says_where);
  EXPECT_THAT(ConnectNccl(std::string(kNcclUniqueIdBytes, 'x'), 0, 1), says_where);
}

}  // namespace
}  // namespace cadre::nccl
