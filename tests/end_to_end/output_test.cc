// Tests that the output of workers comes through the launcher to a terminal, a pipe and files.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/launch.h"
#include "tests/testing/screen.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Two loops, one within the other, each with a bar, byte for byte as tqdm writes them: each text
// that moves the cursor is written by itself. If a named pipe go_RANK exists in the directory $1,
// the program waits for a line from it while both bars are drawn.
constexpr char kBars[] = R"(
  up() { printf '\033[A' >&2; }
  outer() { printf '\r训练 %d/2 |\033[32m%0150d\033[0m|' $1 0 >&2; }
  echo begins
  outer 0
  for o in 1 2; do
    for i in 1 2 3 4 5; do
      printf '\n' >&2; printf '\r  inner %d/5 |%0150d|' $i 0 >&2; up
    done
    if [ -p "$1/go_$RANK" ]; then read line <"$1/go_$RANK"; fi
    printf '\n' >&2; printf '\r%180s' '' >&2; up
    outer $o
  done
  printf '\n' >&2
)";

class Terminal : public testing::TestWithParam<std::pair<int, int>> {
 protected:
  // Waits, for a limited time, until the screen looks as wanted.
  bool Shows(Process& run, Screen& screen, const std::function<bool()>& looks) {
    const absl::Time end = absl::Now() + absl::Seconds(30);
    while (absl::Now() < end) {
      screen.Write(absl::string_view(run.standard_output()).substr(seen_));
      seen_ = run.standard_output().size();
      if (looks()) return true;
      if (!run.ReadMore(absl::Seconds(1))) return false;
    }
    return false;
  }
  size_t seen_ = 0;
};

// Fault (display): A program draws nested progress bars on terminals of 60 to 200 columns that are
// resized -> Each bar has one row, cut to the width, and no remnants are left
TEST_P(Terminal, BarsWithinBars_AreARowForEachAndLeaveNothing) {
  const auto [before, after] = GetParam();
  const std::string directory = MakeTempDir("go");
  std::vector<int> go;
  for (const char* rank : {"0", "1"}) {
    const std::string path = absl::StrCat(directory, "/go_", rank);
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    go.push_back(open(path.c_str(), O_RDWR | O_CLOEXEC));
  }
  auto run = StartCadre({"run", "--standalone", "--nproc-per-node", "2", "--log-dir", directory,
                         "--", "/bin/sh", "-c", kBars, "bars", directory},
                        {{"TERM", "xterm"}}, true);
  Screen screen(24, before);
  run->Resize(24, before);
  const auto bars = [&screen](int outer) {
    bool cut = true;
    for (const Screen::Row& row : screen.Rows()) {
      if (absl::StrContains(row.text, "] ")) cut = cut && !row.broken;
    }
    return cut && screen.Count("begins") == 2 && screen.Count("训练") == 2 &&
           screen.Count(absl::StrCat("训练 ", outer, "/2")) == 2 && screen.Count("inner") == 2 &&
           screen.Count("inner 5/5") == 2;
  };
  EXPECT_TRUE(Shows(*run, screen, [&] { return bars(0); })) << screen.Text();
  run->Resize(24, after);
  screen.Resize(24, after);
  for (const int fd : go) EXPECT_EQ(write(fd, "x\n", 2), 2);
  EXPECT_TRUE(Shows(*run, screen, [&] { return bars(1); })) << screen.Text();
  for (const int fd : go) EXPECT_EQ(write(fd, "x\n", 2), 2);
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  Shows(*run, screen, [] { return true; });
  for (const int fd : go) close(fd);
  // The last state of each outer bar is a line.
  EXPECT_EQ(screen.Count("训练"), 2u) << screen.Text();
  EXPECT_EQ(screen.Count("训练 2/2"), 2u) << screen.Text();
  EXPECT_EQ(screen.Count("inner"), 0u) << screen.Text();
  EXPECT_EQ(screen.Count("x1b"), 0u) << screen.Text();
  EXPECT_EQ(screen.Count("workers 2/2"), 0u) << "the block is gone:\n" << screen.Text();
  EXPECT_THAT(screen.unknown(), IsEmpty());
  EXPECT_THAT(run->standard_output(), HasSubstr("\x1b[32m00"));
}

INSTANTIATE_TEST_SUITE_P(Widths, Terminal,
                         testing::Values(std::pair(60, 100), std::pair(80, 60),
                                         std::pair(200, 60)));

// Removes the prefixes from the output of one worker.
std::string WithoutPrefix(const std::string& text) {
  std::string prefix = text.substr(0, text.find("] ") + 2);
  prefix.erase(0, prefix.find('['));
  return absl::StrReplaceAll(text, {{prefix, ""}});
}

// Fault (display): A program draws nested progress bars into a pipe -> The pipe and the log files
// have what the program wrote
TEST(PipeTest, BarsWithinBars_AreWhatTheProgramWrote) {
  const std::string logs = MakeTempDir("logs");
  auto run = StartStandalone(
      {"--log-dir", logs, "--job-name", "bars", "--", "/bin/sh", "-c", kBars, "bars", "/nowhere"});
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  const std::string file = ReadFileOrEmpty(logs + "/bars/generation_1/rank_0/stderr.log");
  EXPECT_THAT(file, HasSubstr("\n\r  inner 5/5 |"));
  EXPECT_THAT(file, HasSubstr("\x1b[A\n\r"));
  const std::string& all = run->standard_error();
  const size_t begin = all.find('\r'), end = all.find("cadre: ", begin);
  ASSERT_NE(begin, std::string::npos) << all;
  EXPECT_EQ(WithoutPrefix(all.substr(begin, end - begin)), file);
}

// Fault (display): Several ranks write a line of a megabyte at once -> Each is one line, in files
// and in a pipe
TEST(PipeTest, AMegabyteWithoutANewline_IsOneLineForEachRank) {
  const std::string logs = MakeTempDir("logs");
  auto run = StartStandalone({"--nproc-per-node", "4", "--log-dir", logs, "--job-name", "long",
                              "--", "/bin/sh", "-c",
                              "for piece in 1 2 3 4; do head -c 250000 /dev/zero | tr '\\0' $RANK; "
                              "echo short >&2; done; echo"});
  EXPECT_EQ(run->Wait(), 0) << run->standard_error();
  std::vector<std::string> lines = absl::StrSplit(run->standard_output(), '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 4u);
  for (const std::string& line : lines) {
    const std::string text = line.substr(line.find("] ") + 2);
    EXPECT_EQ(text.size(), 1000000u);
    EXPECT_EQ(text.find_first_not_of(text[0]), std::string::npos);
  }
  EXPECT_EQ(ReadFileOrEmpty(logs + "/long/generation_1/rank_3/stdout.log"),
            std::string(1000000, '3') + "\n");
}

// While the reader does not read yet, ranks that write must wait, but nothing else: the end of a
// rank is reported. All output comes once it reads.
//
// Fault (display): A worker writes faster than the reader of the launcher's output, which begins
// late, reads -> The worker waits as for the pipe itself, all output arrives, and the exits of
// other ranks are noticed meanwhile
TEST(PipeTest, AReaderThatBeginsLate_GetsAllThatWasWritten) {
  const std::string logs = MakeTempDir("logs");
  auto run = StartStandalone(
      {"--nproc-per-node", "2", "--log-dir", logs, "--job-name", "late", "--", "/bin/sh", "-c",
       "if [ $RANK = 0 ]; then exec yes line; fi; while [ ! -s " + logs +
           "/late/generation_1/rank_0/stdout.log ]; do sleep 0.1; done; sleep 1; exit 7"});
  const std::string verdict = logs + "/late/verdict.json";
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(ReadFileOrEmpty(verdict), "FAILED"); }));
  EXPECT_EQ(run->Wait(), 7) << run->standard_error();
  EXPECT_THAT(run->standard_error(), Not(HasSubstr("lines were dropped")));
  const std::string file = ReadFileOrEmpty(logs + "/late/generation_1/rank_0/stdout.log");
  const std::string& out = run->standard_output();
  // 'yes' may have been killed within a line. Only the launcher's output gets a newline then.
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'),
            std::count(file.begin(), file.end(), '\n') + (absl::EndsWith(file, "\n") ? 0 : 1));
}

// Fault (display): The job is over, but the reader of the launcher's output has stopped reading ->
// The launcher's end waits for the reader until a signal arrives
TEST(PipeTest, TheEndWaitsForALateReader_AndASignalEndsTheWait) {
  const std::string logs = MakeTempDir("logs");
  auto run = StartStandalone({"--log-dir", logs, "--job-name", "end", "--", "/bin/sh", "-c",
                              "head -c 1000000 /dev/zero | tr '\\0' x; echo"});
  const std::string verdict = logs + "/end/verdict.json";
  ASSERT_TRUE(Eventually([&] { return !ReadFileOrEmpty(verdict).empty(); }));
  EXPECT_FALSE(WaitGone(run->pid(), absl::Seconds(4))) << "it has not been read";
  run->Kill(SIGINT);
  EXPECT_TRUE(WaitGone(run->pid(), absl::Seconds(20)));
  EXPECT_EQ(run->Wait(), 0) << "the job's status";
}

// The launcher passes on the output of workers, so a job does not end when the reader closes the
// pipe, as it does if workers write to the pipe themselves (torchrun: BrokenPipeError). The log
// files still get all output.
//
// Fault (display): The reader of the launcher's output leaves, as `head -1` does -> The job goes on
// to its end and exit status, and the log files have all output
TEST(PipeTest, AReaderThatLeaves_DoesNotEndTheJob) {
  const std::string logs = MakeTempDir("logs");
  auto run = StartProgram("/bin/bash", {"-c", "set -o pipefail; \"$0\" \"$@\" | head -1", kCadre,
                                        "run", "--standalone", "--log-dir", logs, "--job-name",
                                        "head", "--", "/bin/sh", "-c", "seq 1 200000; exit 5"});
  EXPECT_EQ(run->Wait(absl::Seconds(60)), 5) << OutputOf(*run);
  EXPECT_TRUE(absl::EndsWith(run->standard_output(), "] 1\n")) << run->standard_output();
  EXPECT_THAT(ReadFileOrEmpty(logs + "/head/generation_1/rank_0/stdout.log"),
              HasSubstr("\n200000\n"));
}

}  // namespace
}  // namespace cadre
