#include "worker_runtime/hierarchical/node_layout.h"

#include "base/status_matchers.h"

namespace cadre::hierarchical {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(NodeLayoutTest, NodesMayHaveDifferentNumbersOfRanks) {
  const auto layout = NodeLayout::Of({0, 0, 1, 2, 2, 2});
  ASSERT_OK(layout);
  EXPECT_EQ(layout->NodeOf(1), 0);
  EXPECT_EQ(layout->NodeOf(2), 1);
  EXPECT_EQ(layout->NodeOf(5), 2);
  EXPECT_EQ(layout->FirstRank(2), 3);
  EXPECT_EQ(layout->EndRank(2), 6);
  EXPECT_THAT(layout->Sums({1, 2, 3, 4, 5, 6}), ElementsAre(3, 3, 15));
}

TEST(NodeLayoutTest, RanksThatAreNotContiguousAreNamed) {
  EXPECT_THAT(NodeLayout::Of({0, 1, 0}),
              StatusIs(StatusCode::kFailedPrecondition,
                       HasSubstr("rank 2 is on node 0, rank 1 on node 1")));
}

}  // namespace
}  // namespace cadre::hierarchical
