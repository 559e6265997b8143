#include "rendezvous/host/stack_asks.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_matchers.h"

namespace cadre::host {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

MonoTime At(absl::Duration since) { return MonoTime::FromMicros(absl::ToInt64Microseconds(since)); }

// "0,1 at x; n1 2+1: has gone".
std::string Words(const absl::StatusOr<v1::GetStacksReply>& reply) {
  if (!reply.ok()) return reply.status().ToString();
  std::vector<std::string> words;
  for (const v1::StackGroup& group : reply->groups()) {
    words.push_back(
        absl::StrCat(absl::StrJoin(group.ranks(), ","), " at ", group.first().no_python()));
  }
  for (const v1::SilentNode& node : reply->silent()) {
    words.push_back(
        absl::StrCat(node.node(), " ", node.first_rank(), "+", node.workers(), " ", node.why()));
  }
  return absl::StrJoin(words, "; ");
}

class StackAsksTest : public testing::Test {
 protected:
  // Nodes n0, n1, ... with two workers each, on streams 1, 2, ...; 0: not connected.
  static StackSources Sources(const std::vector<uint64_t>& streams) {
    StackSources sources;
    sources.generation = 3;
    for (size_t i = 0; i < streams.size(); ++i) {
      StackSources::Node node;
      node.member.set_node(absl::StrCat("n", i));
      node.member.set_first_rank(static_cast<uint32_t>(2 * i));
      node.member.set_slots(2);
      if (streams[i] != 0) node.stream = StreamId{streams[i]};
      if (streams[i] == 0) node.why = "is not connected now";
      sources.nodes.push_back(node);
    }
    return sources;
  }
  uint64_t Add(const std::vector<uint64_t>& streams, bool native = false) {
    v1::StackQuestion question;
    question.set_native(native);
    return *asks_.Add(Sources(streams), question, MonoTime(),
                      [this](const auto& reply) { answers_.push_back(Words(reply)); });
  }
  void Answer(uint64_t call, uint64_t stream, const std::string& place,
              const std::string& why = "") {
    v1::NodeStacks stacks;
    stacks.set_call(call);
    stacks.set_why(why);
    for (int local_rank = 0; why.empty() && local_rank < 2; ++local_rank) {
      v1::RankStack* rank = stacks.add_ranks();
      rank->mutable_evidence()->set_local_rank(local_rank);
      rank->set_no_python(place);
    }
    asks_.Take(StreamId{stream}, stacks);
  }

  StackAsks asks_;
  std::vector<std::string> answers_;
};

TEST_F(StackAsksTest, IsAnsweredWhenAllNodesHave) {
  const uint64_t call = Add({1, 2});
  Answer(call, 2, "x");
  Answer(call, 2, "again");
  EXPECT_THAT(answers_, IsEmpty());
  Answer(call, 1, "x");
  EXPECT_THAT(answers_, ElementsAre("0,1,2,3 at x"));
  Answer(call, 1, "late");
  EXPECT_THAT(answers_, ElementsAre("0,1,2,3 at x"));
  EXPECT_EQ(asks_.NextDeadline(), MonoTime::Never());
}

TEST_F(StackAsksTest, OnlyWhoWasAskedAnswers) {
  const uint64_t call = Add({1});
  Answer(call, 2, "forged");
  Answer(call + 1, 1, "another call's");
  EXPECT_THAT(answers_, IsEmpty());
  Answer(call, 1, "true");
  EXPECT_THAT(answers_, ElementsAre("0,1 at true"));
}

TEST_F(StackAsksTest, NodesThatDoNotAnswerAreNamed_AndTheRestIsTold) {
  const uint64_t call = Add({1, 0, 2, 3, 4});
  Answer(call, 1, "x");
  Answer(call, 3, "", "no worker runs there");
  asks_.EndOfStream(StreamId{4});
  EXPECT_EQ(asks_.NextDeadline(), At(kStacksTimeout));
  asks_.Expire(At(kStacksTimeout - absl::Milliseconds(1)));
  EXPECT_THAT(answers_, IsEmpty());
  asks_.Expire(At(kStacksTimeout));
  EXPECT_THAT(answers_,
              ElementsAre("0,1 at x; n1 2+2 is not connected now; n2 4+2 has not answered within "
                          "2.5s; n3 6+2 no worker runs there; n4 8+2 has gone"));
}

TEST_F(StackAsksTest, WhereNobodyCanBeAskedTheAnswerComesAtOnce) {
  Add({0});
  EXPECT_THAT(answers_, ElementsAre("n0 0+2 is not connected now"));
  Add({1});
  asks_.EndOfStream(StreamId{1});
  EXPECT_THAT(answers_, ElementsAre("n0 0+2 is not connected now", "n0 0+2 has gone"));
}

TEST_F(StackAsksTest, NativeStacksTakeLonger) {
  Add({1}, true);
  EXPECT_EQ(asks_.NextDeadline(), At(kNativeStacksTimeout));
  Add({2});
  EXPECT_EQ(asks_.NextDeadline(), At(kStacksTimeout));
}

TEST_F(StackAsksTest, OneUsersLeaveOthersTheirPlaces) {
  const auto done = [](const absl::StatusOr<v1::GetStacksReply>&) {};
  const auto add = [&](const std::string& owner) {
    return asks_.Add(Sources({1}), {}, MonoTime(), done, owner).status();
  };
  for (size_t i = 0; i < kStackAsksOfUserMax; ++i) EXPECT_OK(add("ann"));
  EXPECT_EQ(add("ann").message(),
            "user ann asks for the stacks of 16 jobs at once, which is the limit (stacks of a "
            "user); try again when some have answered");
  EXPECT_OK(add("bob"));
}

TEST_F(StackAsksTest, AreBounded) {
  for (size_t i = 0; i < kStackAsksMax; ++i) Add({1});
  EXPECT_THAT(asks_.Add(Sources({1}), {}, MonoTime(), nullptr),
              StatusIs(absl::StatusCode::kResourceExhausted));
  asks_.EndAll(absl::UnavailableError("over"));
  EXPECT_EQ(answers_.size(), kStackAsksMax);
  EXPECT_EQ(answers_[0], "UNAVAILABLE: over");
}

TEST_F(StackAsksTest, OfManySilentNodesTheRestIsCounted) {
  v1::GetStacksReply reply;
  ASSERT_OK(asks_.Add(Sources(std::vector<uint64_t>(kSilentNodesMax + 5, 0)), {}, MonoTime(),
                      [&](const auto& answered) { reply = *answered; }));
  EXPECT_EQ(reply.silent_size(), kSilentNodesMax);
  EXPECT_EQ(reply.silent_left_out(), 5u);
}

}  // namespace
}  // namespace cadre::host
