// Starts of Python programs that come while their template imports.
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "agent/supervisor/processes/process_scan.h"
#include "agent/supervisor/warm/warm_rig.h"
#include "base/clock.h"
#include "gtest/gtest.h"

namespace cadre::supervisor {
namespace {

class WarmWaitTest : public WarmTest {
 protected:
  bool HasFile(const std::string& name) const {
    return access((rig_.folder() + "/" + name).c_str(), F_OK) == 0;
  }
  // A worker runs whose template has begun and imports until there is a file "go". The program's
  // own imports have taken kImports. The packages have names of some at which no look is needed.
  static constexpr absl::Duration kImports = absl::Seconds(1);
  void HoldTemplate(const std::string& pytz = "") {
    Install("six", absl::StrCat("import os, time\n"
                                "if b'=template' in open('/proc/self/environ', 'rb').read():\n"
                                "  open('importing', 'w').write(str(os.getpid()))\n"
                                "  while not os.path.exists('go'):\n    time.sleep(0.01)\n"
                                "elif not os.path.exists('importing'):\n  time.sleep(",
                                absl::ToDoubleSeconds(kImports), ")\n"));
    Install("pytz", pytz);
    WriteScript(
        "import six, pytz, os, time\nprint('began', flush=True)\n"
        "if os.environ['RANK'] == '1':\n  time.sleep(1000)\n");
    StartFrame learner = Worker();
    learner.warm.quiet_ms = 1500;  // longer than the import that it waits in
    learner_ = learner.group;
    rig_.Send(learner);
    rig_.Until([&] { return ImportsOf(learner_).has_value(); });
    EXPECT_GE(absl::Milliseconds(*ImportsOf(learner_)), kImports);
    rig_.UntilFiles([&] { return HasFile("importing"); });
    EndLearner();
  }
  // The first worker imports until it is killed, and a template for ever.
  void HoldImport() {
    Install("six",
            "import os, time\n"
            "if b'=template' in open('/proc/self/environ', 'rb').read():\n  time.sleep(1000)\n"
            "if os.environ['RANK'] in '12' and not os.path.exists('killed'):\n"
            "  open('amid' + os.environ['RANK'], 'w')\n  time.sleep(1000)\n");
    WriteScript("import six\nprint('began', flush=True)\n");
  }
  void KillAmidImports(const std::vector<StartFrame>& workers) {
    for (const StartFrame& worker : workers) rig_.Send(worker);
    for (const StartFrame& worker : workers) {
      rig_.UntilFiles([&] { return HasFile(absl::StrCat("amid", worker.group)); });
    }
    WriteFile(rig_.folder() + "/killed", "");
    // The one that learns last.
    for (auto worker = workers.rbegin(); worker != workers.rend(); ++worker) {
      rig_.Stop(0, worker->group);
    }
  }
  // It is seen by the supervisor, which reads one after the other.
  void SendAndSee(const StartFrame& worker) {
    rig_.Send(worker);
    rig_.Run(rig_.Shell("true", ++groups_));
  }
};

TEST_F(WarmWaitTest, AStartWaitsForATemplateThatStillImports) {
  HoldTemplate();
  const StartFrame warm = Worker();
  SendAndSee(warm);
  EXPECT_FALSE(rig_.Started(warm.group).has_value());
  WriteFile(rig_.folder() + "/go", "");
  rig_.Until([&] { return rig_.Exit(warm.group).has_value(); });
  ASSERT_TRUE(rig_.Started(warm.group).has_value());
  EXPECT_TRUE(rig_.Started(warm.group)->warm) << rig_.Started(warm.group)->why_plain;
  EXPECT_EQ(OutputOf(warm.group), "began\n");
}

TEST_F(WarmWaitTest, AStartWaitsNoLongerThanItsImportsWouldTake) {
  HoldTemplate();
  const StartFrame plain = Worker();
  EXPECT_EQ(rig_.Run(plain).exit_code, 0);
  EXPECT_FALSE(rig_.Started(plain.group)->warm);
  EXPECT_EQ(rig_.Started(plain.group)->why_plain, "its template is still importing");
  EXPECT_EQ(OutputOf(plain.group), "began\n");
}

// It would wait for two times what the imports take.
TEST_F(WarmWaitTest, AStartDoesNotWaitForATemplateThatMustBeginAnew) {
  HoldTemplate(
      "import threading, time\n"
      "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n");
  const StartFrame plain = Worker();
  SendAndSee(plain);
  EXPECT_FALSE(rig_.Started(plain.group).has_value());
  WriteFile(rig_.folder() + "/go", "");
  rig_.Until([&] { return rig_.Exit(plain.group).has_value(); });
  EXPECT_EQ(rig_.Started(plain.group)->why_plain, "its template begins anew");
  EXPECT_EQ(OutputOf(plain.group), "began\n");
}

// It would only take the processors from those that import.
TEST_F(WarmWaitTest, AStartThatWaitedInVainEndsTheTemplate_AndNoneWaitsForTheNext) {
  HoldTemplate();
  rig_.Run(Worker());
  std::ifstream file(rig_.folder() + "/importing");
  pid_t before = 0;
  file >> before;
  EXPECT_TRUE(WaitUntilDead(before));
  unlink((rig_.folder() + "/importing").c_str());
  StartFrame stays = Worker();
  stays.environment[2] = "RANK=1";
  stays.warm.quiet_ms = 1500;
  rig_.Send(stays);
  rig_.UntilFiles([&] { return HasFile("importing"); });
  rig_.Stop(0, stays.group);
  const StartFrame plain = Worker();
  SendAndSee(plain);
  ASSERT_TRUE(rig_.Started(plain.group).has_value());
  EXPECT_FALSE(rig_.Started(plain.group)->warm);
}

TEST_F(WarmWaitTest, AStartDoesNotWaitForATemplateThatLooksAtPackagesFirst) {
  Install("looked_at",
          "import os, time\nif b'=template' in open('/proc/self/environ', 'rb').read():\n"
          "  while not os.path.exists('go'):\n    time.sleep(0.01)\n"
          "elif not os.path.exists('slow'):\n  open('slow', 'w')\n  time.sleep(10)\n");
  WriteScript("import json, looked_at, os, sys\nprint('began', flush=True)\nsys.exit('no data')\n");
  rig_.Run(Worker());
  const StartFrame plain = Worker();
  const MonoTime begin = MonoNow();
  EXPECT_EQ(rig_.Run(plain).exit_code, 1);
  EXPECT_LT(MonoNow() - begin, absl::Seconds(9));
  EXPECT_EQ(rig_.Started(plain.group)->why_plain, "its template is still importing");
}

// Its template would import for as long as it does itself, and not even all.
TEST_F(WarmWaitTest, AStartAfterAKillAmidItsImportsWaitsForNoTemplate) {
  HoldImport();
  KillAmidImports({Worker()});
  const StartFrame plain = Worker();
  EXPECT_EQ(rig_.Run(plain).exit_code, 0);
  EXPECT_EQ(rig_.Started(plain.group)->why_plain, "it ended before it was known what it imports");
  EXPECT_EQ(OutputOf(plain.group), "began\n");
}

// Several that share a processor import more slowly than a template alone.
TEST_F(WarmWaitTest, WhereWorkersShareAProcessorItWaits) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  CPU_ZERO(&one);
  for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  }
  ASSERT_EQ(sched_setaffinity(rig_.ready().pid, sizeof(one), &one), 0);
  HoldImport();
  KillAmidImports({Worker(), Worker()});
  const StartFrame waits = Worker();
  EXPECT_EQ(rig_.Run(waits).exit_code, 0);
  EXPECT_EQ(rig_.Started(waits.group)->why_plain, "its template is still importing");
}

TEST_F(WarmWaitTest, AStopOfAStartThatWaitsEndsItAtOnce) {
  HoldTemplate();
  const StartFrame waits = Worker();
  SendAndSee(waits);
  rig_.Send(StopFrame{waits.group, 20000});
  rig_.Until([&] { return rig_.AllGoneCount(waits.group) == 1; });
  EXPECT_EQ(rig_.Exit(waits.group)->signal, SIGKILL);
  EXPECT_EQ(OutputOf(waits.group), "");
}

}  // namespace
}  // namespace cadre::supervisor
