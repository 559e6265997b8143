// Floods at the server's port: of strangers, who have no token, and of a user.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "tests/testing/http2_flood.h"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(2);
constexpr int64_t kGrowthMax = 200 << 10;  // KiB

class FloodTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(StartCadre({"token", "new", token_})->Wait(), 0);
    server_ = StartCadre({"server", absl::StrCat("--port=", port_), "--token-file=" + token_,
                          "--state-dir=" + MakeTempDir("state")});
    ASSERT_NE(server_, nullptr);
    ASSERT_TRUE(server_->WaitForLine("serving at").has_value()) << server_->standard_error();
    ExpectAnswer("before");
  }

  FloodOptions Flood(FloodKind kind) const {
    FloodOptions options;
    options.kind = kind;
    options.port = port_;
    options.tls = true;
    options.connections = 4;
    options.duration = kTimeout;
    return options;
  }

  void ExpectAnswer(const std::string& when) const {
    const auto status = StartCadre(
        {"status", absl::StrCat("--server=127.0.0.1:", port_), "--token-file=" + token_});
    ASSERT_NE(status, nullptr);
    EXPECT_EQ(status->Wait(kTimeout), 0) << when << ": " << status->standard_error();
  }

  // Of the server's memory, in KiB: "VmRSS" or, the most that it ever was, "VmHWM".
  int64_t Memory(const std::string& what) const {
    const std::string status = ReadFileOrEmpty(absl::StrCat("/proc/", server_->pid(), "/status"));
    for (const absl::string_view line : absl::StrSplit(status, '\n')) {
      const std::vector<absl::string_view> words =
          absl::StrSplit(line, absl::ByAnyChar(": \t"), absl::SkipEmpty());
      int64_t kib = 0;
      if (words.size() > 1 && words[0] == what && absl::SimpleAtoi(words[1], &kib)) return kib;
    }
    ADD_FAILURE() << "no " << what;
    return 0;
  }

  // While it lasts, and until `enough` has come of it, commands are answered and memory is bounded.
  FloodCounts Withstand(const FloodOptions& options,
                        const std::function<bool(const FloodCounts&)>& enough) {
    const int64_t before = Memory("VmRSS");
    Http2Flood flood(options);
    EXPECT_TRUE(flood.Await(enough, kTimeout)) << FloodKindText(options.kind);
    ExpectAnswer(FloodKindText(options.kind));
    const FloodCounts counts = flood.Stop();
    EXPECT_LT(Memory("VmHWM") - before, kGrowthMax) << FloodKindText(options.kind);
    return counts;
  }

  const std::string token_ = MakeTempDir("token") + "/token";
  const int port_ = FreePort();
  std::unique_ptr<Process> server_;
};

bool ServerClosesSome(const FloodCounts& counts) { return counts.closed_by_server >= 8; }

// What each frame costs the server more than its sender.
class StrangersFloodTest : public FloodTest, public testing::WithParamInterface<FloodKind> {};

// Fault (access): Clients that do not authenticate flood a server: connections, handshakes,
// streams, endless headers, small HTTP/2 frames or huge messages -> Each source has a budget,
// clients that exceed it are closed, and commands are answered meanwhile
TEST_P(StrangersFloodTest, IsCutOff_AndCommandsAreAnswered) {
  Withstand(Flood(GetParam()), ServerClosesSome);
}

INSTANTIATE_TEST_SUITE_P(Kinds, StrangersFloodTest,
                         testing::Values(FloodKind::kStreamsOpened, FloodKind::kStreamsReset,
                                         FloodKind::kContinuations, FloodKind::kEmptyContinuations,
                                         FloodKind::kEndlessHeader, FloodKind::kEndlessInteger,
                                         FloodKind::kIndexedHeaders, FloodKind::kPings,
                                         FloodKind::kSettings, FloodKind::kEmptyData,
                                         FloodKind::kWindowUpdates, FloodKind::kUnconsumedData,
                                         FloodKind::kCalls));

// The server sees the end of the connection before it has read what came with it.
TEST_F(FloodTest, WhatComesWithTheEndOfItsConnectionCountsToo) {
  FloodOptions options = Flood(FloodKind::kStreamsOpened);
  options.connections = 64;
  options.finishes_at_once = true;
  Withstand(options, ServerClosesSome);
  EXPECT_TRUE(server_->WaitForLine("the client sent too much").has_value());
}

// 1 MiB becomes 1 GiB.
//
// Fault (access): A client sends compressed messages that would inflate to 1 GiB -> They are
// refused and never inflated
TEST_F(FloodTest, CompressedMessagesAreRefused_AndNotInflated) {
  const FloodCounts counts =
      Withstand(Flood(FloodKind::kCompressedMessages), [](const FloodCounts& so_far) {
        return so_far.answered_otherwise + so_far.closed_by_server >= 8;
      });
  EXPECT_EQ(counts.answered_ok, 0u);
}

TEST_F(FloodTest, ConnectionsAndHandshakes) {
  for (const FloodKind kind : {FloodKind::kConnectionsHeld, FloodKind::kConnectionsClosed,
                               FloodKind::kHandshakes, FloodKind::kHellos}) {
    FloodOptions options = Flood(kind);
    options.connections = 400;
    Withstand(options, [](const FloodCounts& so_far) { return so_far.connected >= 400; });
  }
}

// Fault (access): A user, or the holder of a launcher's or read-only token, floods a server -> Each
// user's calls, bytes, open calls and unread answers are limited; connections beyond that are
// closed, and the log names the user
TEST_F(FloodTest, OfAUserIsCutOff_AndTheLogSaysWhose) {
  const std::string ann = MakeTempDir("ann") + "/token";
  const auto made = StartCadre({"token", "new", ann, "--user=ann", "--token-file=" + token_,
                                absl::StrCat("--server=127.0.0.1:", port_)});
  ASSERT_EQ(made->Wait(), 0) << made->standard_error();
  FloodOptions options = Flood(FloodKind::kStreamsReset);
  options.token = std::string(absl::StripAsciiWhitespace(ReadFileOrEmpty(ann)));
  options.honest_call_first = true;
  const FloodCounts counts = Withstand(options, ServerClosesSome);
  EXPECT_GT(counts.answered_ok, 0u);
  EXPECT_TRUE(server_->WaitForLine("user ann exceeds the limit of 500 calls").has_value());
}

}  // namespace
}  // namespace cadre
