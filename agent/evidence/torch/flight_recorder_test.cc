#include "agent/evidence/torch/flight_recorder.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/scoped_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/message_limits.h"

namespace cadre::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::string Answer(const std::string& calls) {
  return absl::StrCat(R"([{"group": "0/1", "description": "default_pg", "ranks": [0, 1],)",
                      R"( "size": 2, "last": 9, "calls": [)", calls, "]}]");
}

std::string Call(const std::string& name, const std::string& in, const std::string& out) {
  return absl::StrCat(R"({"number": 3, "name": ")", name, R"(", "pending": true, "input_sizes": )",
                      in, R"(, "output_sizes": )", out,
                      R"(, "input_dtypes": ["Float"], "output_dtypes": ["Float"]})");
}

// The shape in an answer with this single call.
std::string ShapeOf(const std::string& call) {
  const auto groups = ParseFlightRecord(Answer(call));
  if (groups.size() != 1 || groups[0].calls_size() != 1) return "no such answer";
  return groups[0].calls(0).shape();
}

TEST(ParseFlightRecord, WhatAGroupCalled) {
  const auto groups =
      ParseFlightRecord(Answer(Call("gloo:all_reduce", "[[4, 3], []]", "[[4, 3], []]")));
  ASSERT_THAT(groups, SizeIs(1));
  EXPECT_EQ(groups[0].group(), "0/1");
  EXPECT_EQ(groups[0].description(), "default_pg");
  EXPECT_EQ(groups[0].last(), 9);
  ASSERT_EQ(groups[0].calls_size(), 1);
  EXPECT_EQ(groups[0].calls(0).number(), 3);
  EXPECT_EQ(groups[0].calls(0).name(), "all_reduce");
  EXPECT_EQ(groups[0].calls(0).shape(), "[4, 3], [] Float");
  EXPECT_TRUE(groups[0].calls(0).pending());
}

TEST(ParseFlightRecord, OnlyWhatHasToBeTheSameOnAllRanksIsTheShape) {
  EXPECT_EQ(ShapeOf(Call("nccl:_reduce_scatter_base", "[[8]]", "[[2]]")), "[8] Float -> [2] Float");
  EXPECT_EQ(ShapeOf(Call("gloo:all_gather", "[[2]]", "[[2], [2], [2]]")),
            "[2] Float -> 3 x [2] Float");
  EXPECT_EQ(ShapeOf(Call("gloo:scatter", "[[1], [1]]", "[[2]]")), "[2] Float");
  EXPECT_EQ(ShapeOf(Call("gloo:gather", "[[2]]", "[[2], [2]]")), "[2] Float");
  EXPECT_EQ(ShapeOf(Call("nccl:all_to_all", "[[5]]", "[[6]]")), "");
  EXPECT_EQ(ShapeOf(Call("gloo:barrier", "[]", "[]")), "");
}

TEST(ParseFlightRecord, TypesOfBothSidesAndEntriesOfOneCallAreTold) {
  EXPECT_EQ(
      ShapeOf(R"({"number": 1, "name": "nccl:all_reduce", "pending": true, "input_sizes": [[4]],
                        "output_sizes": [[4]], "input_dtypes": ["Half"], "output_dtypes": ["Float"]})"),
      "[4] Half -> [4] Float");
  const std::string part =
      R"({"name": "nccl:all_reduce", "input_sizes": [[4]], "output_sizes": [[4]],
                               "input_dtypes": ["Float"], "output_dtypes": ["Float"]})";
  EXPECT_EQ(ShapeOf(absl::StrCat(R"({"number": 1, "name": "nccl:coalesced", "pending": true, )",
                                 R"("parts": [)", part, ",", part, "]}")),
            "all_reduce [4] Float; all_reduce [4] Float");
}

TEST(ParseFlightRecord, MessagesAreToldByTheRanksOfTheDefaultGroup) {
  const auto groups = ParseFlightRecord(
      R"([{"group": "3/1", "description": "", "ranks": [4, 6], "size": 2, "last": 0, "calls": [],
           "messages": [{"name": "send", "from": 0, "to": 1}, {"name": "recv", "from": -1, "to": 0}]}])");
  ASSERT_THAT(groups, SizeIs(1));
  EXPECT_THAT(groups[0].ranks(), ElementsAre(4, 6));
  ASSERT_EQ(groups[0].messages_size(), 2);
  EXPECT_EQ(groups[0].messages(0).from(), 4);
  EXPECT_EQ(groups[0].messages(0).to(), 6);
  EXPECT_EQ(groups[0].messages(1).from(), -1);
  EXPECT_EQ(groups[0].messages(1).to(), 4);
}

TEST(ParseFlightRecord, OfOtherGroupsThanTheDefaultItIsSaidWhoIsInThem) {
  const auto described = [](const std::string& description, const std::string& size) {
    const auto groups = ParseFlightRecord(
        absl::StrCat(R"([{"group": "3/1", "description": ")", description,
                     R"(", "ranks": [0, 2], "size": )", size, R"(, "last": 0, "calls": []}])"));
    return groups.size() == 1 ? groups[0].description() : "no such answer";
  };
  EXPECT_EQ(described("", "2"), "3 (ranks 0, 2)");
  EXPECT_EQ(described("mesh_dp", "64"), "mesh_dp (ranks 0, 2 and 62 more)");
}

TEST(ParseFlightRecord, WhatIsNoAnswerHasNoGroups) {
  for (const std::string& text :
       {std::string(), std::string("no JSON"), std::string("{}x"), std::string("3"),
        std::string(R"([{"group": 1}])"), Answer("7"), std::string(40000, '[')}) {
    EXPECT_THAT(ParseFlightRecord(text), IsEmpty()) << text.substr(0, 80);
  }
}

TEST(ParseFlightRecord, WhatIsNoNumberIsZero) {
  EXPECT_EQ(ShapeOf(Call("gather", "[[4e93, -1, [4], 5]]", "[]")), "[0, 0, 0, 5] Float");
  EXPECT_EQ(ShapeOf(Call("gather", R"("no list")", "[]")), "Float");
}

TEST(ParseFlightRecord, MoreThanIsKeptIsCutOff) {
  std::string calls = Call("a", "[]", "[]");
  for (int i = 0; i < 20; ++i) absl::StrAppend(&calls, ",", Call("a", "[]", "[]"));
  const auto groups = ParseFlightRecord(Answer(calls));
  ASSERT_THAT(groups, SizeIs(1));
  EXPECT_EQ(groups[0].calls_size(), rpc::kGroupCallsMax);
}

// A Unix socket's path must be short, and TempDir() may not be.
class FlightRecordsOfTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(directory_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string directory_ = "/tmp/cadre_record_XXXXXX";
};

ScopedFd ListenAt(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  EXPECT_LT(path.size(), sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.data(), path.size());
  ScopedFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(listen(fd.get(), 4), 0);
  return fd;
}

// Answers one request.
std::thread AnswerOnce(const ScopedFd& listener, const std::string& text) {
  return std::thread([&listener, text] {
    const ScopedFd asked(accept(listener.get(), nullptr, nullptr));
    EXPECT_EQ(send(asked.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  });
}

TEST_F(FlightRecordsOfTest, OneSilentProcessKeepsNoAnswerBack) {
  const std::string stacks = directory_ + "/stacks_1_0.txt";
  const std::string silent = FlightRecorderSocket(stacks, 17);
  const std::string talks = FlightRecorderSocket(stacks, 18);
  const ScopedFd nobody_accepts = ListenAt(silent);
  const ScopedFd listener = ListenAt(talks);
  std::thread process = AnswerOnce(listener, "an answer");
  EXPECT_THAT(FlightRecordsOf({silent, talks, directory_ + "/none", std::string(200, 'x')},
                              MonoNow() + absl::Seconds(2)),
              ElementsAre("", "an answer", "", ""));
  process.join();
}

TEST_F(FlightRecordsOfTest, WithoutASilentOneNobodyWaits) {
  const std::string path = FlightRecorderSocket(directory_ + "/s", 17);
  const ScopedFd listener = ListenAt(path);
  std::thread process = AnswerOnce(listener, "an answer");
  // The deadline is an hour away; the test would time out if it waited for it.
  EXPECT_THAT(FlightRecordsOf({path}, MonoNow() + absl::Hours(1)), ElementsAre("an answer"));
  process.join();
}

TEST_F(FlightRecordsOfTest, WhatIsTooLongIsNoAnswer) {
  const std::string path = FlightRecorderSocket(directory_ + "/s", 17);
  const ScopedFd listener = ListenAt(path);
  std::thread process([&listener] {
    const ScopedFd asked(accept(listener.get(), nullptr, nullptr));
    const std::string piece(8192, 'x');
    // Until the client stops reading.
    while (send(asked.get(), piece.data(), piece.size(), MSG_NOSIGNAL) > 0) {
    }
  });
  EXPECT_THAT(FlightRecordsOf({path}, MonoNow() + absl::Hours(1)), ElementsAre(""));
  process.join();
}

}  // namespace
}  // namespace cadre::agent
