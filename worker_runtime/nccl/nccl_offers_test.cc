#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/nccl/unique_id.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/nccl/nccl_communicator.h"

namespace cadre::nccl {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Id(char byte) { return std::string(kNcclUniqueIdBytes, byte); }

std::string Messages(const std::vector<NcclOffer>& offers) {
  std::string messages;
  for (const NcclOffer& offer : offers) messages += WriteNcclOffer(offer);
  return messages;
}

TEST(NcclOffers, GiveTheRootsIdsInOrder) {
  const std::string messages = Messages({{OkStatus(), "a", Id('\0')},
                                         {OkStatus(), "b", ""},
                                         {OkStatus(), "c", Id('\n')},
                                         {OkStatus(), "d", ""}});
  EXPECT_EQ(messages.size(), 4 * kNcclOfferBytes);
  const auto ids = AgreeOnNcclIds(messages);
  ASSERT_OK(ids);
  EXPECT_THAT(*ids, ElementsAre(Id('\0'), Id('\n')));
}

TEST(NcclOffers, TellTheFirstRanksErrorToAll) {
  const auto ids = AgreeOnNcclIds(Messages({{OkStatus(), "a", Id('x')},
                                            {NotFoundError("no NCCL here"), "", ""},
                                            {FailedPreconditionError("no GPU"), "", ""}}));
  EXPECT_EQ(ids.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ids.status().message(), "rank 1: no NCCL here");
}

TEST(NcclOffers, RefuseOneGpuForTwoRanks) {
  const auto ids = AgreeOnNcclIds(Messages(
      {{OkStatus(), "node 0000:01:00.0", Id('x')}, {OkStatus(), "node 0000:01:00.0", ""}}));
  EXPECT_EQ(ids.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(ids.status().message(), AllOf(HasSubstr("ranks 0 and 1"), HasSubstr("0000:01:00.0")));
}

TEST(NcclOffers, OutcomesNameNoGpu) {
  EXPECT_OK(AgreeOnNcclIds(Messages({{OkStatus(), "", ""}, {OkStatus(), "", ""}})));
}

// Of two problems, the one that the user did not choose takes precedence.
TEST(NcclOffers, ARankThatCannotComeIsSaidBeforeAGpuThatIsShared) {
  const auto ids = AgreeOnNcclIds(Messages({{OkStatus(), "a", Id('x')},
                                            {OkStatus(), "a", ""},
                                            {NotFoundError("no NCCL here"), "", ""}}));
  EXPECT_EQ(ids.status().code(), StatusCode::kNotFound);
}

TEST(NcclOffers, CutWhatIsTooLong) {
  const auto ids =
      AgreeOnNcclIds(Messages({{NotFoundError(std::string(2 * kNcclOfferBytes, 'x')), "", ""}}));
  EXPECT_EQ(ids.status().code(), StatusCode::kNotFound);
}

TEST(NcclOffers, RefuseWhatNobodyWrote) {
  EXPECT_EQ(AgreeOnNcclIds(std::string(kNcclOfferBytes, 'x')).status().code(),
            StatusCode::kInternal);
}

}  // namespace
}  // namespace cadre::nccl
