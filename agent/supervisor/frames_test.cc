#include "agent/supervisor/frames.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::supervisor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Feeds `bytes` one at a time and returns the single frame that must come out at the last byte.
Frame RoundTrip(const Frame& frame) {
  const std::string bytes = EncodeFrame(frame);
  frames::FrameReader reader(kMaxFrameBytes);
  for (size_t i = 0; i < bytes.size(); ++i) {
    auto next = NextFrame(reader);
    EXPECT_THAT(next, IsOk());
    EXPECT_FALSE(next->has_value()) << "a frame before its last byte, at " << i;
    reader.Append(absl::string_view(&bytes[i], 1));
  }
  auto next = NextFrame(reader);
  EXPECT_THAT(next, IsOk());
  EXPECT_TRUE(next->has_value());
  return **next;
}

TEST(FramesTest, StartCarriesEveryField) {
  StartFrame start;
  start.group = 0x1122334455667788;
  start.argv = {"train", "", std::string("a\0b", 3)};
  start.environment = {"PATH=/bin"};
  start.working_dir = "/tmp";
  start.stdout_path = "/o";
  start.stderr_path = "/e";
  start.forward_stdout = false;
  start.error_file = "/x.json";
  start.cpus = {0, 4000000000u};
  start.stands_by = true;
  start.assignment = {"RANK=1"};
  start.warm = {"/warm", "module", "script", {"a", "b"}, {"RANK"}, 7};
  start.stdout_file = {"/out", 1764381600123};
  start.stderr_file = {"/err", 0};
  const auto got = std::get<StartFrame>(RoundTrip(start));
  EXPECT_EQ(got.group, start.group);
  EXPECT_EQ(got.argv, start.argv);
  EXPECT_EQ(got.environment, start.environment);
  EXPECT_EQ(got.working_dir, "/tmp");
  EXPECT_EQ(got.stdout_path, "/o");
  EXPECT_EQ(got.stderr_path, "/e");
  EXPECT_FALSE(got.forward_stdout);
  EXPECT_TRUE(got.forward_stderr);
  EXPECT_EQ(got.error_file, "/x.json");
  EXPECT_THAT(got.cpus, ElementsAre(0u, 4000000000u));
  EXPECT_TRUE(got.stands_by);
  EXPECT_THAT(got.assignment, ElementsAre("RANK=1"));
  EXPECT_EQ(got.warm.directory, "/warm");
  EXPECT_EQ(got.warm.module, "module");
  EXPECT_EQ(got.warm.script, "script");
  EXPECT_THAT(got.warm.preload, ElementsAre("a", "b"));
  EXPECT_THAT(got.warm.rank_variables, ElementsAre("RANK"));
  EXPECT_EQ(got.warm.quiet_ms, 7u);
  EXPECT_EQ(got.stdout_file.path, "/out");
  EXPECT_EQ(got.stdout_file.empty_before_ms, 1764381600123);
  EXPECT_EQ(got.stderr_file.path, "/err");
  EXPECT_EQ(got.stderr_file.empty_before_ms, 0);
}

TEST(FramesTest, StartCarriesWhatTheGroupIsHeldTo) {
  StartFrame start;
  start.containment = {
      true, 1000, 100, {{195, 1, 2, true}, {195, 0, UINT32_MAX, false}}, uint64_t{1} << 40, 7};
  const Containment got = std::get<StartFrame>(RoundTrip(start)).containment;
  EXPECT_TRUE(got.asked);
  EXPECT_EQ(got.uid, 1000u);
  EXPECT_EQ(got.gid, 100u);
  ASSERT_EQ(got.devices.size(), 2u);
  EXPECT_EQ(got.devices[0].major, 195u);
  EXPECT_EQ(got.devices[0].first_minor, 1u);
  EXPECT_EQ(got.devices[0].last_minor, 2u);
  EXPECT_TRUE(got.devices[0].allowed);
  EXPECT_FALSE(got.devices[1].allowed);
  EXPECT_EQ(got.memory_bytes, uint64_t{1} << 40);
  EXPECT_EQ(got.max_pids, 7u);
}

TEST(FramesTest, WhetherOutputIsReadIsSaid) {
  EXPECT_FALSE(std::get<ReadingFrame>(RoundTrip(ReadingFrame{false})).reads);
}

TEST(FramesTest, WhatIsSaidOfWarmStartsCarriesEveryField) {
  const auto started = std::get<StartedFrame>(RoundTrip(StartedFrame{5, 44, 3, true, "why"}));
  EXPECT_TRUE(started.warm);
  EXPECT_EQ(started.why_plain, "why");
  const auto imported = std::get<ImportedFrame>(RoundTrip(ImportedFrame{5, 1800}));
  EXPECT_EQ(imported.group, 5u);
  EXPECT_EQ(imported.milliseconds, 1800u);
  const auto got = std::get<TemplateFrame>(RoundTrip(TemplateFrame{9, 1200, 3400, {"a note"}}));
  EXPECT_EQ(got.pid, 9);
  EXPECT_EQ(got.modules, 1200u);
  EXPECT_EQ(got.milliseconds, 3400u);
  EXPECT_THAT(got.notes, ElementsAre("a note"));
}

// As encoded by an agent and a supervisor of 0.3, byte for byte.
TEST(FramesTest, ThoseOfBeforeAreAsTheyWere) {
  using namespace std::string_literals;
  EXPECT_EQ(EncodeFrame(StartedFrame{5, 44, 3, true, "why"}, kFramesBefore),
            "\x1d\0\0\0\x05\x05\0\0\0\0\0\0\0\x2c\0\0\0\x03\0\0\0\0\0\0\0\x01"
            "\x03\0\0\0why"s);
  // Length, kind, group, pid, exit code, signal, core, errno, step, out of memory, memory limit,
  // two texts.
  EXPECT_EQ(EncodeFrame(ExitedFrame{}, kFramesBefore).size(),
            size_t{4 + 1 + 8 + 4 + 4 + 4 + 1 + 4 + 4 + 1 + 8 + 4 + 4});
}

TEST(FramesTest, WhatThoseOfBeforeDoNotKnowIsNotSaid) {
  EXPECT_EQ(EncodeFrame(ReadingFrame{true}, kFramesBefore), "");
  EXPECT_NE(EncodeFrame(DirectoryFrame{"/tmp/a"}, kFramesBefore), "");
  EXPECT_EQ(EncodeFrame(SignalFrame{5, 10, true}, kFramesBefore),
            EncodeFrame(SignalFrame{5, 10, false}, kFramesBefore));
  StartFrame start;
  start.stdout_path = "/o";
  const std::string bytes = EncodeFrame(start, kFramesBefore);
  start.stdout_file.path = "/out";
  EXPECT_EQ(EncodeFrame(start, kFramesBefore), bytes);
  EXPECT_NE(EncodeFrame(start), bytes);
}

TEST(FramesTest, ExitedCarriesEveryField) {
  ExitedFrame exited;
  exited.group = 3;
  exited.pid = 77;
  exited.exit_code = -1;
  exited.signal = 11;
  exited.core_dumped = true;
  exited.exec_errno = 2;
  exited.exec_step = "chdir";
  exited.out_of_memory = true;
  exited.memory_limit = uint64_t{5} << 30;
  exited.last_lines = "bye\n";
  exited.error_json = "{}";
  const auto got = std::get<ExitedFrame>(RoundTrip(exited));
  EXPECT_EQ(got.group, 3u);
  EXPECT_EQ(got.pid, 77);
  EXPECT_EQ(got.exit_code, -1);
  EXPECT_EQ(got.signal, 11);
  EXPECT_TRUE(got.core_dumped);
  EXPECT_EQ(got.exec_errno, 2);
  EXPECT_EQ(got.exec_step, "chdir");
  EXPECT_TRUE(got.out_of_memory);
  EXPECT_EQ(got.memory_limit, uint64_t{5} << 30);
  EXPECT_EQ(got.last_lines, "bye\n");
  EXPECT_EQ(got.error_json, "{}");
}

TEST(FramesTest, SmallFramesKeepTheirType) {
  EXPECT_EQ(std::get<StopFrame>(RoundTrip(StopFrame{5, 30000})).grace_ms, 30000u);
  EXPECT_EQ(std::get<SignalFrame>(RoundTrip(SignalFrame{5, 10})).signal, 10);
  EXPECT_TRUE(std::get<SignalFrame>(RoundTrip(SignalFrame{5, 10, true})).process_only);
  EXPECT_EQ(std::get<HoldFrame>(RoundTrip(HoldFrame{5, int64_t{1} << 40})).until_us,
            int64_t{1} << 40);
  EXPECT_EQ(std::get<ReadyFrame>(RoundTrip(ReadyFrame{9, "/c", "why"})).degraded, "why");
  EXPECT_EQ(std::get<StartedFrame>(RoundTrip(StartedFrame{5, 44, 3, true, ""})).was, 3u);
  EXPECT_EQ(std::get<AllGoneFrame>(RoundTrip(AllGoneFrame{5})).group, 5u);
  EXPECT_EQ(std::get<KeepFrame>(RoundTrip(KeepFrame{7, "/s", "t"})).token, "t");
  EXPECT_EQ(std::get<DirectoryFrame>(RoundTrip(DirectoryFrame{"/tmp/a"})).path, "/tmp/a");
  EXPECT_TRUE(std::holds_alternative<GoodbyeFrame>(RoundTrip(GoodbyeFrame{})));
  EXPECT_EQ(std::get<AdoptFrame>(RoundTrip(AdoptFrame{"t"})).token, "t");
  const auto adopted = std::get<AdoptedFrame>(RoundTrip(AdoptedFrame{"id", {1, 9}, 3, -4, true}));
  EXPECT_THAT(adopted.groups, ElementsAre(1, 9));
  EXPECT_EQ(adopted.hold_until_us, -4);
  EXPECT_TRUE(adopted.stopping);
  const auto remains =
      std::get<RemainsFrame>(RoundTrip(RemainsFrame{5, {{7, 'D', "nfs_wait"}, {8, 'R', ""}}}));
  ASSERT_EQ(remains.processes.size(), 2u);
  EXPECT_EQ(remains.processes[0].pid, 7);
  EXPECT_EQ(remains.processes[0].state, 'D');
  EXPECT_EQ(remains.processes[0].kernel_function, "nfs_wait");
  const auto output = std::get<OutputFrame>(RoundTrip(OutputFrame{5, 3, 12, "x\n"}));
  EXPECT_EQ(output.stream, 3);
  EXPECT_EQ(output.dropped, 12u);
  EXPECT_EQ(output.bytes, "x\n");
}

TEST(FramesTest, FramesInOneReadComeOutInOrder) {
  frames::FrameReader reader(kMaxFrameBytes);
  for (uint64_t g = 1; g <= 1000; ++g) reader.Append(EncodeFrame(AllGoneFrame{g}));
  for (uint64_t g = 1; g <= 1000; ++g) {
    auto next = NextFrame(reader);
    ASSERT_OK(next);
    ASSERT_TRUE(next->has_value());
    EXPECT_EQ(std::get<AllGoneFrame>(**next).group, g);
  }
  auto next = NextFrame(reader);
  ASSERT_OK(next);
  EXPECT_FALSE(next->has_value());
}

TEST(FramesTest, RefusesABrokenPeer) {
  const std::string good = EncodeFrame(StopFrame{1, 2});
  std::string too_long = good;
  too_long[3] = 0x7f;
  std::string empty(4, '\0');
  std::string unknown = good;
  unknown[4] = 99;
  std::string zero_type = good;
  zero_type[4] = 0;
  std::string trailing = good + "x";
  trailing[0] = static_cast<char>(trailing[0] + 1);
  std::string shortened = good.substr(0, good.size() - 1);
  shortened[0] = static_cast<char>(shortened[0] - 1);
  for (const std::string& bytes : {too_long, empty, unknown, zero_type, trailing, shortened}) {
    frames::FrameReader reader(kMaxFrameBytes);
    reader.Append(bytes);
    EXPECT_THAT(NextFrame(reader),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("frame of")));
  }
}

TEST(FramesTest, ALyingCountDoesNotAllocate) {
  std::string bytes = EncodeFrame(StartFrame{});
  // argv's count follows length, type and group.
  for (size_t i = 13; i < 17; ++i) bytes[i] = '\xff';
  frames::FrameReader reader(kMaxFrameBytes);
  reader.Append(bytes);
  EXPECT_THAT(NextFrame(reader), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(FramesTest, LargestFrameIsAccepted) {
  OutputFrame output;
  output.bytes.assign(kMaxFrameBytes - (EncodeFrame(OutputFrame{}).size() - 4), 'x');
  frames::FrameReader reader(kMaxFrameBytes);
  reader.Append(EncodeFrame(output));
  EXPECT_THAT(NextFrame(reader), IsOk());
  output.bytes.push_back('x');
  frames::FrameReader over(kMaxFrameBytes);
  over.Append(EncodeFrame(output));
  EXPECT_THAT(NextFrame(over), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace cadre::supervisor
