#include "worker_runtime/standby_assignment.h"

#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class AssignmentTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_), 0); }
  void TearDown() override {
    close(ends_[0]);
    close(ends_[1]);
  }
  environment::GetVariable Get() {
    return [text = std::to_string(ends_[1])](const char* name) {
      return std::string(name) == "CADRE_STANDS_BY" ? text.c_str() : nullptr;
    };
  }
  // Sends the text including the NUL at the end of the literal.
  template <size_t size>
  void Say(const char (&text)[size]) {
    ASSERT_EQ(write(ends_[0], text, size), static_cast<ssize_t>(size));
  }

  int ends_[2] = {-1, -1};
};

TEST_F(AssignmentTest, IsReadOnceItIsSaidThatTheProcessWaits) {
  EXPECT_TRUE(StandsBy(Get()));
  Say("RANK=3\0CADRE_CHECKPOINT_FILE=/a=b\0EMPTY=\0");
  const auto assignment = AwaitAssignment(Get());
  ASSERT_OK(assignment);
  EXPECT_THAT(*assignment, ElementsAre(Pair("CADRE_CHECKPOINT_FILE", "/a=b"), Pair("EMPTY", ""),
                                       Pair("RANK", "3")));
  char waits = 1;
  EXPECT_EQ(read(ends_[0], &waits, 1), 1);
  const environment::GetVariable get = WithAssignment(*assignment, Get());
  EXPECT_STREQ(get("RANK"), "3");
  EXPECT_STREQ(get("CADRE_STANDS_BY"), std::to_string(ends_[1]).c_str());
  EXPECT_EQ(get("HOME"), nullptr);
}

TEST_F(AssignmentTest, APartOfOneIsNone) {
  Say("RANK=3");
  shutdown(ends_[0], SHUT_WR);
  EXPECT_THAT(AwaitAssignment(Get()), StatusIs(StatusCode::kUnavailable));
}

TEST_F(AssignmentTest, OnceItWasReadThereIsNoOther) {
  Say("RANK=3\0");
  ASSERT_OK(AwaitAssignment(Get()));
  shutdown(ends_[0], SHUT_RDWR);
  EXPECT_THAT(AwaitAssignment(Get()), StatusIs(StatusCode::kUnavailable));
}

TEST_F(AssignmentTest, NamesADescriptorThatIsNotThere) {
  const environment::GetVariable get = [](const char*) { return "12345"; };
  EXPECT_THAT(AwaitAssignment(get),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("CADRE_STANDS_BY is \"12345\"")));
}

}  // namespace

}  // namespace cadre
