#include "rpc/python_frame.h"

#include "gtest/gtest.h"

namespace cadre::rpc {
namespace {

TEST(PythonFrame, OfATracebackAndOfFaulthandler) {
  for (const char* line :
       {"  File \"/me/train.py\", line 40, in main", "  File \"/me/train.py\", line 40 in main"}) {
    const auto frame = ParsePythonFrame(line);
    ASSERT_TRUE(frame.has_value()) << line;
    EXPECT_EQ(frame->file, "/me/train.py");
    EXPECT_EQ(frame->line, 40);
    EXPECT_EQ(frame->function, "main");
    EXPECT_EQ(FileName(*frame), "train.py");
  }
}

TEST(PythonFrame, AnErrorOfSyntaxNamesNoFunction) {
  const auto frame = ParsePythonFrame("  File \"train.py\", line 2");
  ASSERT_TRUE(frame.has_value());
  EXPECT_EQ(frame->line, 2);
  EXPECT_EQ(frame->function, "");
}

TEST(PythonFrame, AFileMayBeNamedLikeAFrame) {
  const auto frame = ParsePythonFrame("  File \"/me/a \"b\", line 3.py\", line 7 in load");
  ASSERT_TRUE(frame.has_value());
  EXPECT_EQ(frame->file, "/me/a \"b\", line 3.py");
  EXPECT_EQ(frame->line, 7);
}

TEST(PythonFrame, OtherLinesAreNone) {
  for (const char* line :
       {"", "File \"x\", line 1", "  File \"x\"", "  File \"x\", line y in z", "    return f(x)"}) {
    EXPECT_FALSE(ParsePythonFrame(line).has_value()) << line;
  }
}

TEST(PythonFrame, WhatIsInstalledIsNotTheUsers) {
  EXPECT_TRUE(IsInstalledPython("/venv/lib/python3.11/site-packages/torch/x.py"));
  EXPECT_TRUE(IsInstalledPython("/usr/lib/python3/dist-packages/x.py"));
  EXPECT_TRUE(IsInstalledPython("/usr/lib/python3.11/threading.py"));
  EXPECT_TRUE(IsInstalledPython("<frozen importlib._bootstrap>"));
  EXPECT_FALSE(IsInstalledPython("/home/me/train.py"));
}

}  // namespace
}  // namespace cadre::rpc
