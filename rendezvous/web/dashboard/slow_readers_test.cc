// Bytes that wait for readers that do not read.
#include <stdlib.h>

#include <fstream>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "rendezvous/web/dashboard/agent_logs.h"
#include "rendezvous/web/dashboard/event_streams.h"
#include "rendezvous/web/dashboard/log_tails.h"

namespace cadre::web {
namespace {

// A reader that takes what was written when it is told to.
class FakeExchange final : public HttpExchange {
 public:
  void Reply(int, absl::string_view, absl::string_view) override { closed_ = true; }
  bool Begin(absl::string_view) override { return true; }
  void Write(absl::string_view bytes) override { absl::StrAppend(&waiting_, bytes); }
  void End() override { closed_ = true; }
  bool closed() const override { return closed_; }
  size_t waiting() const override { return waiting_.size(); }

  void Read() { absl::StrAppend(&read_, std::exchange(waiting_, "")); }
  const std::string& read() const { return read_; }

 private:
  std::string waiting_, read_;
  bool closed_ = false;
};

HttpServer::Poster Here() {
  return [](const std::function<void()>& task) { task(); };
}

TEST(SlowReadersTest, AFileIsReadAsFastAsItsReaderReadsAndNothingIsLeftOut) {
  std::string root = testing::TempDir() + "/tails_XXXXXX";
  ASSERT_NE(mkdtemp(&root[0]), nullptr);
  LogTails tails(root);
  const auto reader = std::make_shared<FakeExchange>();
  tails.Add(reader, "log");
  std::string text;
  for (int line = 0; text.size() < 16 * kTailBytesPerTick; ++line) {
    absl::StrAppend(&text, "line ", line, "\n");
  }
  // Of a file that is not new only the end would be shown.
  std::ofstream log(root + "/log");
  log << std::flush;
  tails.Tick();
  log << text << std::flush;
  for (int tick = 0; tick < 20; ++tick) tails.Tick();
  EXPECT_GT(reader->waiting(), 0u);
  EXPECT_LE(reader->waiting(), 2 * kTailBytesPerTick);
  for (int tick = 0; tick < 40 && reader->read().size() < text.size(); ++tick) {
    reader->Read();
    tails.Tick();
  }
  EXPECT_TRUE(reader->read() == text);
}

TEST(SlowReadersTest, NoAgentIsAskedForAReaderThatIsBehind) {
  int asked = 0;
  const Serving serving = [&]() -> absl::StatusOr<std::shared_ptr<host::CoreThread>> {
    ++asked;
    return absl::UnavailableError("in reserve");
  };
  AgentLogs logs(serving, Here);
  const auto reader = std::make_shared<FakeExchange>();
  logs.Add(reader, v1::ReadLogRequest());
  logs.Tick();
  EXPECT_EQ(asked, 2);
  reader->Write(std::string(kTailBytesPerTick, 'x'));
  logs.Tick();
  EXPECT_EQ(asked, 2);
  reader->Read();
  logs.Tick();
  EXPECT_EQ(asked, 3);
}

TEST(SlowReadersTest, AReaderThatIsBehindIsToldTheNewestStateOnceItReads) {
  int state = 0;
  const Serving serving = [&]() -> absl::StatusOr<std::shared_ptr<host::CoreThread>> {
    return absl::UnavailableError(absl::StrCat("state ", state, std::string(kBehindBytes, '.')));
  };
  EventStreams events(serving, Here);
  const auto reader = std::make_shared<FakeExchange>();
  events.Add(reader, "", Bearer());
  const size_t first = reader->waiting();
  EXPECT_GT(first, 0u);
  for (state = 1; state < 100; ++state) events.Tick();
  EXPECT_EQ(reader->waiting(), first);
  reader->Read();
  state = 100;
  events.Tick();
  reader->Read();
  EXPECT_TRUE(absl::StrContains(reader->read(), "state 0."));
  EXPECT_TRUE(absl::StrContains(reader->read(), "state 100."));
  EXPECT_FALSE(absl::StrContains(reader->read(), "state 50."));
}

TEST(SlowReadersTest, WhoIsToldVeryMuchIsToldTheRestWithTheNextTick) {
  EventStreams events([] { return absl::UnavailableError(std::string(kHttpStreamBytesMax, '.')); },
                      Here);
  const auto reader = std::make_shared<FakeExchange>();
  events.Add(reader, "", Bearer());
  // Of the jobs, and not of the nodes yet.
  EXPECT_GT(reader->waiting(), kHttpStreamBytesMax);
  EXPECT_LT(reader->waiting(), 2 * kHttpStreamBytesMax);
  reader->Read();
  events.Tick();
  EXPECT_GT(reader->waiting(), kHttpStreamBytesMax);
}

TEST(SlowReadersTest, AReaderIsToldNothingMoreOnceItsTokenHasEnded) {
  EventStreams events([] { return absl::UnavailableError("away"); }, Here);
  Bearer ended;
  ended.kind = Bearer::Kind::kReader;
  ended.ends = absl::UnixEpoch();
  const auto reader = std::make_shared<FakeExchange>();
  events.Add(reader, "", ended);
  EXPECT_EQ(reader->waiting(), 0u);
  const auto other = std::make_shared<FakeExchange>();
  events.Add(other, "", Bearer());
  EXPECT_GT(other->waiting(), 0u);
}

}  // namespace
}  // namespace cadre::web
