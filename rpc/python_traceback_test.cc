#include "rpc/python_traceback.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::rpc {
namespace {

// Makes a traceback of one frame.
std::string Traceback(const std::string& file, int line, const std::string& exception) {
  return "Traceback (most recent call last):\n  File \"" + file + "\", line " +
         std::to_string(line) + ", in f\n    f()\n" + exception + "\n";
}

TEST(PythonException, OfNoTraceback) {
  for (const char* lines : {"", "\n", "ValueError: x\n", "  File \"a.py\", line 1, in f\n"}) {
    EXPECT_FALSE(LastPythonException(lines).has_value()) << lines;
  }
}

TEST(PythonException, ItsTypeAndPlace) {
  const std::string lines = "step 3\n" + Traceback("/home/me/a.py", 7, "my.Error: gone: 3");
  const auto found = LastPythonException(lines);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->type, "my.Error");
  EXPECT_EQ(found->line, "my.Error: gone: 3");
  EXPECT_EQ(found->where, "a.py, line 7");
  EXPECT_EQ(found->raised_in, "");
  EXPECT_TRUE(found->causes.empty());
  EXPECT_TRUE(found->last);
}

// Fault (python): The exception has an unusual name, such as `_pickle.PicklingError` -> The verdict
// has the exception and the line all the same
TEST(PythonException, NamesOfAnyForm) {
  for (const char* type : {"_pickle.PicklingError", "_NoData", "my_pkg._errors.Gone_2",
                           "train.main.<locals>.NoData", "Ошибка"}) {
    const std::string lines = Traceback("a.py", 7, std::string(type) + ": gone");
    const auto found = LastPythonException(lines);
    ASSERT_TRUE(found.has_value()) << type;
    EXPECT_EQ(found->type, type);
    EXPECT_EQ(found->where, "a.py, line 7");
  }
  for (const char* none : {"1.5: x", "a..b: x", "a b: x", ".a", "<locals>-x"}) {
    EXPECT_FALSE(LastPythonException(Traceback("a.py", 7, none)).has_value()) << none;
  }
}

TEST(PythonException, TheLineOfAPackageThatIsTheProgram) {
  const std::string packages = "  File \"/venv/lib/python3.11/site-packages/";
  const std::string outer =
      "Traceback (most recent call last):\n"
      "  File \"<frozen runpy>\", line 198, in _run_module_as_main\n" +
      packages + "mine/train.py\", line 7, in <module>\n" + packages +
      "torch/utils/data/dataloader.py\", line 9, in f\n";
  const std::string one = outer + "ValueError: x\n";
  EXPECT_EQ(LastPythonException(one)->where, "train.py, line 7");
  // The data loader's processes are not started by runpy.
  const std::string two = outer +
                          "ValueError: Caught ValueError in DataLoader worker process 0.\n"
                          "Original Traceback (most recent call last):\n" +
                          packages + "torch/utils/data/_utils/worker.py\", line 375, in loop\n" +
                          packages + "mine/data.py\", line 11, in __getitem__\nValueError: x\n";
  EXPECT_EQ(LastPythonException(two)->where, "data.py, line 11");
}

TEST(PythonException, OfAGroupTheLastOneWithin) {
  const std::string lines =
      "  + Exception Group Traceback (most recent call last):\n"
      "  |   File \"/me/a.py\", line 9, in main\n"
      "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n"
      "  +-+---------------- 1 ----------------\n"
      "    | Traceback (most recent call last):\n"
      "    |   File \"/me/a.py\", line 4, in load\n"
      "    |     raise ValueError('no sample 3')\n"
      "    | ValueError: no sample 3\n"
      "    +------------------------------------\n";
  const auto found = LastPythonException(lines);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->line, "ValueError: no sample 3");
  EXPECT_EQ(found->where, "a.py, line 4");
  EXPECT_TRUE(found->last);
}

constexpr size_t kRoom = 4096;

void ExpectShortened(const std::string& lines, const std::string& line, const std::string& where) {
  ASSERT_GT(lines.size(), kRoom);
  const std::string shortened = ShortenedLines(lines, kRoom);
  EXPECT_LE(shortened.size(), kRoom);
  const auto found = LastPythonException(shortened);
  ASSERT_TRUE(found.has_value()) << shortened;
  EXPECT_EQ(found->line, line) << shortened;
  EXPECT_EQ(found->where, where) << shortened;
  EXPECT_TRUE(found->last) << shortened;
}

// Fault (python): A traceback or an exception's message is longer than 4 KiB, as those of
// `load_state_dict` -> It is shortened so that the exception and the user's own line are found
TEST(ShortenedLines, OfAMessageThatNamesEveryParameter) {
  std::string keys;
  for (int i = 0; i < 300; ++i) keys += "\"module.layers." + std::to_string(i) + ".weight\", ";
  const std::string message = "RuntimeError: Error(s) in loading state_dict for Net:";
  const std::string lines = Traceback("train.py", 12,
                                      message + "\n\tMissing key(s) in state_dict: " + keys +
                                          "\n\tUnexpected key(s) in state_dict: " + keys);
  ExpectShortened(lines, message, "train.py, line 12");
  // Shortens a message of many lines.
  std::string sizes;
  for (int i = 0; i < 300; ++i)
    sizes += "\n\tsize mismatch for layers." + std::to_string(i) + ".bias";
  ExpectShortened(Traceback("train.py", 12, message + sizes), message, "train.py, line 12");
}

TEST(ShortenedLines, OfManyCallsOfPackages) {
  std::string lines =
      "Traceback (most recent call last):\n  File \"train.py\", line 3, in main\n    fit()\n";
  for (int i = 0; i < 90; ++i) {
    lines += "  File \"/venv/lib/python3.11/site-packages/lightning/trainer.py\", line " +
             std::to_string(i) + ", in call_and_handle_interrupt\n    return f(*args, **kwargs)\n";
  }
  ExpectShortened(lines + "MisconfigurationException: no data\n",
                  "MisconfigurationException: no data", "train.py, line 3");
}

TEST(ShortenedLines, WhatFitsStays) {
  EXPECT_EQ(ShortenedLines("a\nb\n", 4), "a\nb\n");
  EXPECT_EQ(ShortenedLines("", 0), "");
  EXPECT_THAT(ShortenedLines(std::string(9000, 'x'), kRoom),
              ::testing::EndsWith("... [9000 bytes]\n"));
  std::string steps;
  for (int i = 0; i < 1000; ++i) steps += "step " + std::to_string(i) + "\n";
  const std::string shortened = ShortenedLines(steps, kRoom);
  EXPECT_THAT(shortened, ::testing::EndsWith("step 998\nstep 999\n"));
  EXPECT_GT(shortened.size(), kRoom / 2);
}

TEST(PythonException, ThoseThatLedToIt) {
  const std::string lines =
      Traceback("z.py", 9, "ValueError: of another") + Traceback("a.py", 1, "KeyError: 'k'") +
      "\nDuring handling of the above exception, another exception occurred:\n\n" +
      Traceback("b.py", 2, "OSError: gone") +
      "\nThe above exception was the direct cause of the following exception:\n\n" +
      Traceback("c.py", 3, "MyError");
  const auto found = LastPythonException(lines);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->line, "MyError");
  ASSERT_EQ(found->causes.size(), 2u);
  EXPECT_EQ(found->causes[0].line, "KeyError: 'k'");
  EXPECT_EQ(found->causes[0].where, "a.py, line 1");
  EXPECT_EQ(found->causes[1].line, "OSError: gone");
}

std::string TorchrunsEnd(const std::string& exit_code, const std::string& traceback) {
  return Traceback("/env/bin/torchrun", 4,
                   "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ") +
         "=====\ntrain.py FAILED\n-----\nFailures:\n  <NO_OTHER_FAILURES>\n-----\n"
         "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-27_05:00:00\n"
         "  rank      : 3 (local_rank: 1)\n  exitcode  : " +
         exit_code + "\n  error_file: <N/A>\n  traceback : " + traceback + "\n=====\n";
}

TEST(PythonException, OfWhatTorchrunHadStarted) {
  const std::string end = TorchrunsEnd("1 (pid: 7)", "To enable traceback see: https://x.html");
  auto found = LastPythonException(Traceback("train.py", 2, "SyntaxError: bad") + end);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->line, "SyntaxError: bad");
  EXPECT_EQ(found->where, "train.py, line 2");
  EXPECT_TRUE(found->last);
  std::string of_rank_1 = "[rank1]: ", of_rank_0 = "[rank0]: ";
  for (const char c : Traceback("a.py", 7, "KeyError: 'k'")) {
    of_rank_1.append(c == '\n' ? "\n[rank1]: " : std::string(1, c));
  }
  for (const char c : Traceback("a.py", 9, "RuntimeError: Connection closed by peer")) {
    of_rank_0.append(c == '\n' ? "\n[rank0]: " : std::string(1, c));
  }
  const std::string lines = of_rank_1 + "\n" + of_rank_0 + "\n" + end;
  found = LastPythonException(lines);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->line, "KeyError: 'k'") << "the other one is its consequence";
}

TEST(PythonException, OfTorchrunWhereItsProgramSaidNothing) {
  const std::string killed = TorchrunsEnd("-9 (pid: 7)", "Signal 9 (SIGKILL) received by PID 7");
  auto found = LastPythonException(killed);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->line, "Signal 9 (SIGKILL) received by PID 7");
  EXPECT_EQ(found->where, "");
  EXPECT_TRUE(found->last);
  const std::string exited = TorchrunsEnd("9 (pid: 7)", "To enable traceback see: https://x.html");
  found = LastPythonException(exited);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->line, "exitcode  : 9 (pid: 7)");
}

TEST(PythonException, WhetherItIsWhatEndedTheProgram) {
  const std::string one = Traceback("a.py", 1, "KeyError: 'k'");
  const std::string warning = "[rank1]:[W1124 15:00:00.1 ProcessGroup.cpp:1] Warning: not called\n";
  EXPECT_TRUE(LastPythonException(one + warning + "\n")->last);
  EXPECT_TRUE(LastPythonException(one + "terminate called without an active exception\n")->last);
  EXPECT_FALSE(
      LastPythonException(one + "terminate called after throwing an instance of 'E'")->last);
  EXPECT_FALSE(LastPythonException(one + "the disk is full\n")->last);
  // The message has several lines.
  EXPECT_TRUE(LastPythonException(one + "\tMissing key: w\n")->last);
  const std::string uncaught =
      "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"a.py\", line 1, in f\n"
      "[rank1]: RuntimeError: CUDA error: an illegal access\n"
      "[rank1]: CUDA kernel errors might be asynchronously reported\n";
  EXPECT_TRUE(LastPythonException(uncaught + "bye\n")->last);
}

TEST(PythonException, WhatWasRaisedInAnotherProcess) {
  const std::string installed = "/venv/lib/python3.11/site-packages/torch/x.py";
  const std::string outer =
      Traceback("train.py", 30, "ValueError: Caught ValueError in DataLoader worker process 0.");
  const std::string inner = "Original " + Traceback("data.py", 11, "ValueError: no sample 5");
  auto found = LastPythonException(outer + inner);
  EXPECT_EQ(found->line, "ValueError: no sample 5");
  EXPECT_EQ(found->where, "data.py, line 11");
  EXPECT_EQ(found->raised_in, "DataLoader worker process 0");
  const std::string packages = outer + "Original " + Traceback(installed, 5, "OSError: gone");
  found = LastPythonException(packages);
  EXPECT_EQ(found->where, "train.py, line 30") << "the user's line that was reading from there";
}

TEST(PythonException, WhatEndedWhileItHandedOverABatch) {
  const std::string lines =
      "  File \"train.py\", line 30, in main\n"
      "  File \"/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py\", line 9, in f\n"
      "  File \"/usr/lib/python3.11/multiprocessing/connection.py\", line 378, in _recv\n";
  EXPECT_EQ(LastPythonException(lines + "ConnectionResetError: [Errno 104] reset")->raised_in,
            "receiving from a DataLoader worker");
  EXPECT_EQ(LastPythonException(lines + "KeyError: 'k'")->raised_in, "");
}

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

TEST(PythonFrame, WhatIsCadresIsNotTheUsers) {
  for (const char* name : {"_library.py", "_torch_work.py", "__init__.py", "checkpoint.py"}) {
    EXPECT_TRUE(IsInstalledPython(std::string("/opt/cadre/python/cadre/") + name)) << name;
  }
  EXPECT_TRUE(IsInstalledPython("/run/cadre/warm/python/sitecustomize.py"));
  EXPECT_FALSE(IsInstalledPython("/home/me/cadre/train.py"));
  EXPECT_FALSE(IsInstalledPython("/home/me/cadre/_models/library.py"));
}

constexpr char kPackages[] = "/venv/lib/python3.11/site-packages/";

UserFrames Of(const std::vector<PythonFrame>& outermost_first) {
  UserFrames own;
  for (const PythonFrame& frame : outermost_first) own.Add(frame);
  return own;
}

TEST(OwnPython, APackageThatIsTheProgram) {
  const std::string packages = kPackages;
  const UserFrames module = Of({{"<frozen runpy>", 198, "_run_module_as_main"},
                                {"<frozen runpy>", 88, "_run_code"},
                                {packages + "mine/train.py", 7, "<module>"},
                                {packages + "torch/nn/x.py", 9, "forward"}});
  EXPECT_TRUE(module.is_package());
  EXPECT_TRUE(module.Has(packages + "mine/models/net.py"));
  EXPECT_FALSE(module.Has(packages + "torch/nn/x.py"));
  EXPECT_FALSE(module.Has(packages + "minecraft/x.py"));
  EXPECT_TRUE(module.Has("/home/me/config.py"));
  // With the frames of CPython 3.10.
  EXPECT_TRUE(Of({{"/usr/lib/python3.10/runpy.py", 196, "_run_module_as_main"},
                  {packages + "mine/train.py", 7, "<module>"}})
                  .Has(packages + "mine/x.py"));
  const UserFrames script = Of({{"/venv/bin/train", 8, "<module>"},
                                {packages + "mine/cli.py", 7, "main"},
                                {packages + "torch/nn/x.py", 9, "forward"}});
  EXPECT_TRUE(script.Has(packages + "mine/models/net.py"));
  EXPECT_FALSE(script.Has(packages + "torch/nn/x.py"));
}

TEST(OwnPython, AScriptOfTheUsersThatCallsAPackage) {
  const std::string packages = kPackages;
  for (const char* script : {"/home/me/train.py", "/home/me/bin/train", "/venv/bin/train.py"}) {
    const UserFrames own =
        Of({{script, 8, "<module>"}, {packages + "torch/nn/x.py", 9, "forward"}});
    EXPECT_FALSE(own.is_package()) << script;
    EXPECT_FALSE(own.Has(packages + "torch/nn/x.py")) << script;
  }
}

}  // namespace

}  // namespace cadre::rpc
