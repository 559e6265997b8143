#include "agent/workers/worker_outputs.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "agent/recording_display.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

supervisor::OutputFrame Out(uint8_t stream, const std::string& bytes) {
  return {1, stream, 0, bytes};
}

TEST(WorkerOutputsTest, WholeLinesWithTheirWorkersPrefix) {
  RecordingDisplay display;
  WorkerOutputs outputs({}, display);
  outputs.Begin({"h", "default", 4, 0});
  outputs.Begin({"h", "default", 5, 1});
  outputs.Add(0, Out(1, "on"));
  outputs.Add(1, Out(2, "bad\n"));
  outputs.Add(0, Out(1, "e\ntwo"));
  EXPECT_EQ(display.standard_output, "[h:4] one\n");
  EXPECT_EQ(display.standard_error, "[h:5] bad\n");
  outputs.FlushAll();
  EXPECT_EQ(display.standard_output, "[h:4] one\n[h:4] two\n");
  outputs.Flush(0);
  outputs.Flush(9);
  EXPECT_EQ(display.standard_output, "[h:4] one\n[h:4] two\n");
}

TEST(WorkerOutputsTest, WhatIsOverwrittenIsTheRanksRows) {
  RecordingDisplay display;
  display.draws = true;
  WorkerOutputs outputs({}, display);
  outputs.Begin({"h", "default", 4, 0});
  outputs.Add(0, Out(2, "\r1/3"));
  outputs.Add(0, Out(2, "\r2/3"));
  EXPECT_THAT(display.current[0], ElementsAre("[h:4] 2/3"));
  outputs.Add(0, Out(1, "a line\n"));
  EXPECT_THAT(display.current[0], ElementsAre("[h:4] 2/3"));
  outputs.Add(0, Out(2, "\n"));
  outputs.Add(0, Out(2, "\rwithin\x1b[A"));
  EXPECT_THAT(display.current[0], ElementsAre("[h:4] 2/3", "[h:4] within"));
  outputs.Add(0, Out(2, "\n\r      \x1b[A\r3/3\n"));
  EXPECT_THAT(display.current[0], ElementsAre("[h:4] 3/3"));
  EXPECT_EQ(display.standard_error, "");
  outputs.Add(0, Out(2, "over\n"));
  EXPECT_THAT(display.current[0], IsEmpty());
  EXPECT_EQ(display.standard_error, "[h:4] 3/3\n[h:4] over\n");
  outputs.Add(0, Out(2, "\r4/3"));
  outputs.Flush(0);
  EXPECT_THAT(display.current[0], IsEmpty());
  EXPECT_EQ(display.standard_error, "[h:4] 3/3\n[h:4] over\n[h:4] 4/3\n");
  // A pipe gets what was written.
  outputs.Add(0, Out(1, "1%\r2%\r"));
  EXPECT_EQ(display.standard_output, "[h:4] a line\n[h:4] 1%\r[h:4] 2%\r");
}

// As long as a line is not longer than may be held, and then at a break that is marked.
TEST(WorkerOutputsTest, NoOtherRanksLineComesIntoALine) {
  RecordingDisplay display;
  WorkerOutputs outputs({}, display);
  outputs.Begin({"h", "default", 4, 0});
  outputs.Begin({"h", "default", 5, 1});
  const std::string piece(256 << 10, 'x');
  for (int i = 0; i < 4; ++i) {
    outputs.Add(0, Out(1, piece));
    outputs.Add(1, Out(1, piece));
    outputs.Add(1, Out(2, "of error\n"));
  }
  EXPECT_EQ(display.standard_output, "");
  outputs.Add(1, Out(1, "1\n"));
  outputs.Add(0, Out(1, "0\n"));
  const std::string line = piece + piece + piece + piece;
  EXPECT_EQ(display.standard_output, "[h:5] " + line + "1\n[h:4] " + line + "0\n");

  display.standard_output.clear();
  const std::string full(kMaxOutputLine, 'y');
  outputs.Add(0, Out(1, full));
  outputs.Add(0, Out(1, "more"));
  outputs.Add(0, Out(1, ", and more\n"));
  EXPECT_EQ(display.standard_output, "[h:4] " + full + "more, and more\n");

  display.standard_output.clear();
  outputs.Add(0, Out(1, full));
  outputs.Add(0, Out(1, "more"));
  outputs.Add(1, Out(1, "other\n"));
  outputs.Add(0, Out(1, ", and more\n"));
  EXPECT_EQ(display.standard_output,
            absl::StrCat("[h:4] ", full, kSplitMarker, "\n[h:5] other\n[h:4] more, and more\n"));
}

TEST(WorkerOutputsTest, ProgressIsReturnedAndNotShown) {
  RecordingDisplay display;
  WorkerOutputs outputs({}, display);
  outputs.Begin({"h", "default", 0, 0});
  EXPECT_EQ(outputs.Add(0, Out(3, "step=1\nste")), "step=1\n");
  EXPECT_EQ(outputs.Add(0, Out(3, "p=2\n")), "step=2\n");
  EXPECT_EQ(outputs.Add(0, Out(1, "step=3\n")), "");
  EXPECT_EQ(display.standard_output, "[h:0] step=3\n");
}

TEST(WorkerOutputsTest, AWorkerThatGoesOnHasAnotherPrefix_OthersAreForgotten) {
  RecordingDisplay display;
  WorkerOutputs outputs({}, display);
  outputs.Begin({"h", "default", 0, 0});
  outputs.Begin({"h", "default", 1, 1});
  outputs.Add(0, Out(1, "before"));
  outputs.Add(1, Out(1, "lost"));
  outputs.KeepOnly({0});
  outputs.Begin({"h", "default", 7, 0});
  outputs.Add(0, Out(1, "after\n"));
  outputs.Add(1, Out(1, "unknown\n"));
  outputs.FlushAll();
  EXPECT_EQ(display.standard_output, "[h:0] before\n[h:7] after\n");
}

TEST(WorkerOutputsTest, FilteredLinesAreInAFileToo) {
  std::string directory = ::testing::TempDir() + "/outputs_XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  RecordingDisplay display;
  OutputOptions options;
  options.prefix_template = "${rank}: ";
  options.stdout_filters = {"loss"};
  WorkerOutputs outputs(options, display);
  outputs.OpenFiltered("");
  outputs.OpenFiltered(directory);
  outputs.Begin({"h", "default", 2, 0});
  outputs.Add(0, Out(1, "loss 1\nother\n"));
  outputs.Add(0, Out(2, "loss 2\n"));
  outputs.OpenFiltered("/proc/none");
  EXPECT_THAT(display.own, HasSubstr("cannot write /proc/none/filtered_stdout.log"));
  std::stringstream content;
  content << std::ifstream(directory + "/filtered_stdout.log").rdbuf();
  EXPECT_EQ(content.str(), "2: loss 1\n");
  EXPECT_FALSE(std::filesystem::exists(directory + "/filtered_stderr.log"));
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace cadre::agent
