#include "rendezvous/core/stack_sources.h"

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "rendezvous/core/core_rig.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class StackSourcesTest : public CoreRig {
 protected:
  absl::StatusOr<StackSources> Find(int rank = -1, const std::string& job = "train") {
    v1::GetStacksRequest request;
    request.set_job(job);
    request.mutable_question()->set_one_rank(rank >= 0);
    request.mutable_question()->set_rank(static_cast<uint32_t>(rank));
    return core_.FindStacks(request);
  }
  // "a 0+2 on 1".
  static std::vector<std::string> Lines(const absl::StatusOr<StackSources>& sources) {
    if (!sources.ok()) return {sources.status().ToString()};
    std::vector<std::string> lines;
    for (const StackSources::Node& node : sources->nodes) {
      lines.push_back(
          absl::StrCat(node.member.node(), " ", node.member.first_rank(), "+", node.member.slots(),
                       node.stream.has_value() ? absl::StrCat(" on ", node.stream->value) : ""));
    }
    return lines;
  }
};

TEST_F(StackSourcesTest, AreTheNodesOfTheGenerationThatRuns) {
  const v1::JobSpec spec = SpecOf("train", 2, 2, 0);
  Join(1, spec, "a", 2);
  EXPECT_THAT(Find(), StatusIs(absl::StatusCode::kFailedPrecondition,
                               HasSubstr("job train is gathering: none of its workers runs")));
  Join(2, spec, "b", 3);
  EXPECT_THAT(Lines(Find()), ElementsAre("a 0+2 on 1", "b 2+3 on 2"));
  EXPECT_EQ(Find()->generation, 1u);
  EXPECT_EQ(Find()->world_size, 5u);
  Step(StreamClosed{StreamId{2}});
  EXPECT_THAT(Lines(Find()), ElementsAre("a 0+2 on 1", "b 2+3"));
}

TEST_F(StackSourcesTest, OfOneRankItsNode) {
  const v1::JobSpec spec = SpecOf("train", 2, 2, 0);
  Join(1, spec, "a", 2);
  Join(2, spec, "b", 3);
  EXPECT_THAT(Lines(Find(1)), ElementsAre("a 0+2 on 1"));
  EXPECT_THAT(Lines(Find(2)), ElementsAre("b 2+3 on 2"));
  EXPECT_THAT(Find(5), StatusIs(absl::StatusCode::kFailedPrecondition,
                                HasSubstr("no rank 5; generation 1 has 5 workers")));
}

TEST_F(StackSourcesTest, OfAJobThatIsNotThereOrHasEnded) {
  EXPECT_THAT(Find(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("no job train")));
  EXPECT_THAT(Find(-1, "x\x1b"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("\\x1b")));
  Join(1, SpecOf("train", 1, 1, 0), "a");
  Step(JobCancelled{"train", "enough", 0});
  Say(1, StoppedFrom({"train", "a", 1, 1}));
  EXPECT_THAT(Find(), StatusIs(absl::StatusCode::kFailedPrecondition,
                               HasSubstr("job train has ended (cancelled)")));
}

}  // namespace
}  // namespace cadre
