#include "agent/evidence/python_stack.h"

#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

constexpr char kTorch[] = "/venv/lib/python3.11/site-packages/torch/";

std::string NoSource(const std::string&, int) { return ""; }

TEST(PythonStack, TheMainThreadOfTheLastDump) {
  const auto frames = MainThreadOf(
      "Current thread 0x01 (most recent call first):\n"
      "  File \"/me/old.py\", line 1 in old\n\n"
      "Thread 0x02 (most recent call first):\n"
      "  File \"/venv/lib/python3.11/site-packages/torch/autograd/pin.py\", line 5 in loop\n\n"
      "Current thread 0x01 [python] (most recent call first):\n"
      "  File \"/me/a \"b\", line 3.py\", line 7 in load\n"
      "  File \"/me/train.py\", line 40 in <module>\n");
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(frames[0].file, "/me/a \"b\", line 3.py");
  EXPECT_EQ(frames[0].line, 7);
  EXPECT_EQ(frames[1].function, "<module>");
  EXPECT_TRUE(MainThreadOf("").empty());
  EXPECT_TRUE(MainThreadOf("no stack\n  File \"x\", line y in z\n").empty());
}

TEST(PythonStack, ARankThatWaitsInACollective) {
  const std::string c10d = std::string(kTorch) + "distributed/";
  const PythonPlace place = PlaceOf({{c10d + "distributed_c10d.py", 2806, "all_reduce"},
                                     {c10d + "c10d_logger.py", 83, "wrapper"},
                                     {"/me/train.py", 12, "step"},
                                     {"/me/train.py", 40, "<module>"}},
                                    NoSource);
  EXPECT_EQ(place.activity, v1::IN_COLLECTIVE);
  EXPECT_EQ(place.what, "all_reduce");
  EXPECT_EQ(place.where, "train.py:12 in step");
}

TEST(PythonStack, InTheBackwardPassDdpMayWaitForOthers) {
  const PythonPlace place =
      PlaceOf({{std::string(kTorch) + "autograd/graph.py", 825, "_engine_run_backward"},
               {std::string(kTorch) + "_tensor.py", 581, "backward"},
               {"/me/train.py", 12, "step"}},
              NoSource);
  EXPECT_EQ(place.activity, v1::IN_COLLECTIVE);
  EXPECT_EQ(place.what, "backward");
}

TEST(PythonStack, AReadOfADevicesValueWaitsToo) {
  const auto item = [](const std::string&, int) { return std::string("total = loss.item()"); };
  EXPECT_EQ(PlaceOf({{"/me/train.py", 12, "step"}}, item).activity, v1::IN_COLLECTIVE);
}

TEST(PythonStack, TheLoaderAndTheUsersOwnCode) {
  const PythonPlace loader = PlaceOf({{"/me/data.py", 3, "__getitem__"},
                                      {std::string(kTorch) + "utils/data/fetch.py", 52, "fetch"},
                                      {"/me/train.py", 40, "<module>"}},
                                     [](const std::string& file, int line) {
                                       EXPECT_EQ(file, "/me/data.py");
                                       EXPECT_EQ(line, 3);
                                       return std::string("time.sleep(100)");
                                     });
  EXPECT_EQ(loader.activity, v1::IN_OWN_CODE);
  EXPECT_EQ(loader.what, "time.sleep(100)");
  EXPECT_EQ(loader.where, "data.py:3 in __getitem__");
  EXPECT_EQ(PlaceOf({{"/usr/lib/python3.11/threading.py", 320, "wait"},
                     {std::string(kTorch) + "utils/data/dataloader.py", 9, "_get_data"},
                     {"/me/train.py", 40, "<module>"}},
                    NoSource)
                .activity,
            v1::IN_DATA_LOADER);
  // A lock of the standard library's is the user's wait, not torch's.
  EXPECT_EQ(
      PlaceOf({{"/usr/lib/python3.11/threading.py", 320, "wait"}, {"/me/train.py", 40, "<module>"}},
              NoSource)
          .activity,
      v1::IN_OWN_CODE);
}

TEST(PythonStack, WhileModulesAreImportedNobodyHangs) {
  EXPECT_EQ(PlaceOf({{"/venv/lib/python3.11/site-packages/x.py", 1, "<module>"},
                     {"<frozen importlib._bootstrap>", 241, "_call_with_frames_removed"},
                     {"/me/train.py", 1, "<module>"}},
                    NoSource)
                .activity,
            v1::IMPORTING);
}

TEST(PythonStack, NothingIsKnownOfNoStack) {
  EXPECT_EQ(PlaceOf({}, NoSource).activity, v1::PYTHON_ACTIVITY_UNSPECIFIED);
}

}  // namespace
}  // namespace cadre::agent
