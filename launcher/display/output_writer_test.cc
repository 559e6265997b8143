#include "launcher/display/output_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "gtest/gtest.h"

namespace cadre {
namespace {

struct Pipe {
  Pipe() { EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0); }
  ~Pipe() {
    close(ends[0]);
    if (ends[1] >= 0) close(ends[1]);
  }
  // Reads up to the end of file, after closing the writer's end.
  std::string ReadAll() {
    close(ends[1]);
    ends[1] = -1;
    std::string all;
    char buffer[4096];
    ssize_t got;
    while ((got = read(ends[0], buffer, sizeof(buffer))) > 0) all.append(buffer, got);
    return all;
  }
  int ends[2];
};

TEST(OutputWriterTest, Writes_ArriveInOrder) {
  Pipe pipe;
  OutputWriter writer;
  std::string expected;
  for (int i = 0; i < 100; ++i) {
    const std::string line = "line " + std::to_string(i) + "\n";
    writer.Write(pipe.ends[1], line);
    expected += line;
  }
  EXPECT_TRUE(writer.Flush(absl::Seconds(10)));
  EXPECT_EQ(pipe.ReadAll(), expected);
}

TEST(OutputWriterTest, ReaderThatStandsStill_CallerNeverWaitsAndTheBoundHolds) {
  Pipe pipe;
  fcntl(pipe.ends[1], F_SETPIPE_SZ, 4096);
  OutputWriter writer(16384);
  const std::string line(1023, 'x');
  // Far more than pipe and queue hold: returns although nobody reads.
  for (int i = 0; i < 1000; ++i) writer.Write(pipe.ends[1], line + "\n");
  EXPECT_FALSE(writer.Flush(absl::Milliseconds(1)));
  // At most one pipe, one queue and one piece under way come out.
  std::string got;
  char buffer[4096];
  while (!writer.Flush(absl::Milliseconds(0))) {
    const ssize_t n = read(pipe.ends[0], buffer, sizeof(buffer));
    ASSERT_GT(n, 0);
    got.append(buffer, n);
  }
  got += pipe.ReadAll();
  EXPECT_LE(got.size(), 16384u);
  EXPECT_GE(got.size(), 8192u);
}

}  // namespace
}  // namespace cadre
