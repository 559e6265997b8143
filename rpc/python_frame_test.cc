#include "rpc/python_frame.h"

#include <string>
#include <vector>

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

TEST(PythonFrame, WhatIsCadresIsNotTheUsers) {
  for (const char* name : {"_library.py", "_torch_work.py", "__init__.py", "checkpoint.py"}) {
    EXPECT_TRUE(IsInstalledPython(std::string("/opt/cadre/python/cadre/") + name)) << name;
  }
  EXPECT_TRUE(IsInstalledPython("/run/cadre/warm/python/sitecustomize.py"));
  EXPECT_FALSE(IsInstalledPython("/home/me/cadre/train.py"));
  EXPECT_FALSE(IsInstalledPython("/home/me/cadre/_models/library.py"));
}

constexpr char kPackages[] = "/venv/lib/python3.11/site-packages/";

OwnPython Of(const std::vector<PythonFrame>& outermost_first) {
  OwnPython own;
  for (const PythonFrame& frame : outermost_first) own.See(frame);
  return own;
}

TEST(OwnPython, APackageThatIsTheProgram) {
  const std::string packages = kPackages;
  const OwnPython module = Of({{"<frozen runpy>", 198, "_run_module_as_main"},
                               {"<frozen runpy>", 88, "_run_code"},
                               {packages + "mine/train.py", 7, "<module>"},
                               {packages + "torch/nn/x.py", 9, "forward"}});
  EXPECT_TRUE(module.is_package());
  EXPECT_TRUE(module.Has(packages + "mine/models/net.py"));
  EXPECT_FALSE(module.Has(packages + "torch/nn/x.py"));
  EXPECT_FALSE(module.Has(packages + "minecraft/x.py"));
  EXPECT_TRUE(module.Has("/home/me/config.py"));
  // As of CPython 3.10.
  EXPECT_TRUE(Of({{"/usr/lib/python3.10/runpy.py", 196, "_run_module_as_main"},
                  {packages + "mine/train.py", 7, "<module>"}})
                  .Has(packages + "mine/x.py"));
  const OwnPython script = Of({{"/venv/bin/train", 8, "<module>"},
                               {packages + "mine/cli.py", 7, "main"},
                               {packages + "torch/nn/x.py", 9, "forward"}});
  EXPECT_TRUE(script.Has(packages + "mine/models/net.py"));
  EXPECT_FALSE(script.Has(packages + "torch/nn/x.py"));
}

TEST(OwnPython, AScriptOfTheUsersThatCallsAPackage) {
  const std::string packages = kPackages;
  for (const char* script : {"/home/me/train.py", "/home/me/bin/train", "/venv/bin/train.py"}) {
    const OwnPython own = Of({{script, 8, "<module>"}, {packages + "torch/nn/x.py", 9, "forward"}});
    EXPECT_FALSE(own.is_package()) << script;
    EXPECT_FALSE(own.Has(packages + "torch/nn/x.py")) << script;
  }
}

}  // namespace
}  // namespace cadre::rpc
