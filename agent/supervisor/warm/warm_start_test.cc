// Warm starts of Python programs, with the real supervisor and the machine's interpreter.
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "agent/supervisor/processes/process_scan.h"
#include "agent/supervisor/warm/warm_rig.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::supervisor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// What a script sees and does must be the same, forked or not: these run once plainly and once
// warm.
constexpr char kTells[] = R"(
import os, sys, json, logging
import counted
if os.environ.get("RANK") == "1":
    import time
    time.sleep(1000)
print(sys.argv, __file__, __name__, sys.path[0] == os.path.dirname(os.path.abspath(__file__)))
print(sys.flags.optimize, sys.stdout.line_buffering, sys.stdout.isatty(), sys.stdin.read() == "")
print(sorted(k for k in os.environ if k != "LC_CTYPE"), os.environ["TORCH"])
print([p for p in sys.path if "warm" in p], [k for k in sys.modules if "site" in k])
print(sorted(int(n) for n in os.listdir("/proc/self/fd"))[:4], os.getcwd() == os.path.dirname(__file__))
print(os.getpid() == os.getsid(0), open("/proc/self/cmdline").read().split("\0")[1:])
print(sys.getrecursionlimit(), sys.getswitchinterval(), sys.flags, sys.dont_write_bytecode)
sys.stderr.write("to the other\n")
)";

TEST_F(WarmTest, AWorkerFromATemplateSeesAndDoesWhatAPlainOneDoes) {
  Install("counted", "print('imported')\n");
  WriteScript(kTells);
  for (const std::vector<std::string>& options :
       {std::vector<std::string>{}, {"-O"}, {"-u", "-W", "ignore"}}) {
    const TemplateFrame there = AwaitTemplate([&] {
      StartFrame start = Worker(options);
      start.environment[2] = "RANK=1";
      return start;
    }());
    EXPECT_GT(there.modules, 10u);
    StartFrame plain = Worker(options);
    plain.warm = WarmOptions();
    const StartFrame warm = Worker(options);
    EXPECT_EQ(rig_.Run(plain).exit_code, 0) << rig_.Output(kStderrStream, plain.group);
    EXPECT_EQ(rig_.Run(warm).exit_code, 0) << rig_.Output(kStderrStream, warm.group);
    EXPECT_FALSE(rig_.Started(plain.group)->warm);
    EXPECT_TRUE(rig_.Started(warm.group)->warm) << rig_.Started(warm.group)->why_plain;
    EXPECT_THAT(OutputOf(warm.group), HasSubstr("imported\n"));
    EXPECT_EQ(OutputOf(warm.group), OutputOf(plain.group));
    EXPECT_EQ(rig_.Output(kStderrStream, warm.group), rig_.Output(kStderrStream, plain.group));
    rig_.Stop(0, learner_);
    rig_.frames.clear();
  }
}

// How each script ends, and what it prints about that.
TEST_F(WarmTest, EndsAreThoseOfAPlainStart) {
  Install("counted", "");
  const auto script = [](const std::string& end) {
    return absl::StrCat("import os, sys, json\nimport counted\ndef f():\n  ", end, "\nf()\n");
  };
  WriteScript(script("import time; time.sleep(1000)"));
  AwaitTemplate(Worker());
  for (const char* end :
       {"sys.exit(7)", "sys.exit('text')", "raise ValueError(3)", "os.kill(os.getpid(), 15)",
        "os.abort()", "os._exit(9)", "import not_there", "1 / 0", "this is no Python"}) {
    WriteScript(script(end));
    StartFrame plain = Worker();
    plain.warm = WarmOptions();
    const StartFrame warm = Worker();
    const ExitedFrame expected = rig_.Run(plain);
    const ExitedFrame got = rig_.Run(warm);
    EXPECT_TRUE(rig_.Started(warm.group)->warm) << end;
    EXPECT_EQ(got.exit_code, expected.exit_code) << end;
    EXPECT_EQ(got.signal, expected.signal) << end;
    EXPECT_EQ(got.last_lines, expected.last_lines) << end;
  }
}

TEST_F(WarmTest, TheWorkerIsAGroupLikeAnyOther) {
  Install("counted", "");
  WriteScript(
      "import json, os, time, subprocess\nimport counted\n"
      "if os.environ['RANK'] != '1':\n"
      "  child = subprocess.Popen(['setsid', 'sh', '-c', 'echo up; sleep 1000; :'],"
      " stdout=subprocess.PIPE)\n"
      // Its environment can be read only once it runs.
      "  child.stdout.readline()\n"
      "  print(os.getpid(), child.pid, flush=True)\ntime.sleep(1000)\n");
  const TemplateFrame there = AwaitTemplate(Worker());
  EndLearner();
  const StartFrame warm = Worker();
  rig_.Send(warm);
  const std::vector<std::string> pids = absl::StrSplit(rig_.Lines(1, warm.group)[0], ' ');
  ASSERT_EQ(pids.size(), 2u);
  const pid_t pid = std::stoi(pids[0]);
  EXPECT_EQ(rig_.Started(warm.group)->pid, pid);
  // The marker finds it when all else fails.
  EXPECT_EQ(ReadMarker(pid), ReadMarker(std::stoi(pids[1])));
  EXPECT_NE(ReadMarker(pid), ReadMarker(there.pid));
  EXPECT_EQ(InspectProcess(pid)->parent, rig_.ready().pid);
  rig_.Stop(0, warm.group);
  EXPECT_EQ(rig_.Exit(warm.group)->signal, SIGKILL);
  EXPECT_TRUE(WaitUntilDead(std::stoi(pids[1])));
  // The template does not prevent that, and lives on.
  EXPECT_EQ(kill(there.pid, 0), 0);
}

TEST_F(WarmTest, WhereTheTemplateIsGoneOrStuckWorkersStartPlainly) {
  Install("counted", "");
  WriteScript(
      "import json, os, time\nimport counted\nprint('began', flush=True)\n"
      "if os.environ['RANK'] == '1':\n  time.sleep(1000)\n");
  TemplateFrame there = AwaitTemplate(Worker());
  ASSERT_EQ(kill(there.pid, SIGSTOP), 0);
  const StartFrame stuck = Worker();
  EXPECT_EQ(rig_.Run(stuck).exit_code, 0);
  EXPECT_FALSE(rig_.Started(stuck.group)->warm);
  EXPECT_THAT(rig_.Started(stuck.group)->why_plain, HasSubstr("does not answer"));
  ASSERT_EQ(kill(there.pid, SIGKILL), 0);
  EXPECT_TRUE(WaitUntilDead(there.pid));
  const StartFrame after = Worker();
  EXPECT_EQ(rig_.Run(after).exit_code, 0);
  EXPECT_FALSE(rig_.Started(after.group)->warm);
  EXPECT_EQ(OutputOf(after.group), "began\n");
}

TEST_F(WarmTest, AWarmWorkerHasLittleLeftToImportAndSaysSo) {
  Install("counted", "");
  WriteScript("import json, time\nimport counted\ntime.sleep(1000)\n");
  AwaitTemplate(Worker());
  EXPECT_TRUE(ImportsOf(learner_).has_value());
  EndLearner();
  const StartFrame warm = Worker();
  rig_.Send(warm);
  rig_.Until([&] { return ImportsOf(warm.group).has_value(); });
  EXPECT_TRUE(rig_.Started(warm.group)->warm);
  // It imports the machine's own sitecustomize at most.
  EXPECT_LT(*ImportsOf(warm.group), 500u);
}

TEST_F(WarmTest, WhatReadsARanksVariablesOrLeavesAThreadIsNotImportedBeforehand) {
  Install("reader", "import os\nrank = os.environ.get('RANK')\n");
  Install("threaded",
          "import threading, time\n"
          "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n");
  Install("harmless", "import os\nhome = os.environ.get('HOME')\n");
  WriteScript(
      "import os, sys, time\nimport harmless, reader, threaded\n"
      "print(reader.rank, os.environ['RANK'], len(os.listdir('/proc/self/task')), "
      "flush=True)\n"
      "if reader.rank == '1':\n  time.sleep(1000)\n");
  AwaitTemplate(Worker());
  EXPECT_THAT(absl::StrJoin(Notes(), "\n"),
              testing::AllOf(HasSubstr("not imported beforehand: reader: reads RANK"),
                             HasSubstr("not imported beforehand: threaded: leaves a thread"),
                             testing::Not(HasSubstr("harmless"))));
  const StartFrame warm = Worker();
  rig_.Run(warm);
  EXPECT_TRUE(rig_.Started(warm.group)->warm);
  EXPECT_EQ(OutputOf(warm.group), "2 2 2\n");
}

TEST_F(WarmTest, AModuleOfTheProgramIsNeverImportedBeforehand) {
  Install("counted", "import json\n");
  WriteFile(rig_.folder() + "/mine.py", "import os\nprint('mine', os.getpid())\n");
  // The module beside the script precedes the installed one of this name in the program's path.
  Install("shadowed", "print('the wrong one')\n");
  WriteFile(rig_.folder() + "/shadowed.py", "print('the right one')\n");
  WriteScript(
      "import counted, mine, shadowed, os, sys, time\nprint('began', flush=True)\n"
      "if os.environ['RANK'] == '1':\n  time.sleep(1000)\n");
  AwaitTemplate(Worker());
  const StartFrame warm = Worker();
  rig_.Run(warm);
  ASSERT_TRUE(rig_.Started(warm.group)->warm);
  EXPECT_EQ(OutputOf(warm.group),
            absl::StrCat("mine ", rig_.Started(warm.group)->pid, "\nthe right one\nbegan\n"));
}

TEST_F(WarmTest, WhatIsImportedAfterVariablesAreSetIsLeftToTheWorkers) {
  Install("early", "print('early', flush=True)\n");
  Install("late", "import os\nprint('late sees', os.environ.get('THREADS'), flush=True)\n");
  WriteScript(
      "import early, os, time\nos.environ['MASTER_PORT'] = '1'\n"
      "os.environ['THREADS'] = '3'\nimport late\n"
      "if os.environ['RANK'] == '1':\n  time.sleep(1000)\n");
  AwaitTemplate(Worker());
  EXPECT_THAT(
      Notes(),
      ElementsAre(HasSubstr("late: the program runs code of its own before it imports it")));
  const StartFrame warm = Worker();
  rig_.Run(warm);
  ASSERT_TRUE(rig_.Started(warm.group)->warm);
  EXPECT_EQ(OutputOf(warm.group), "early\nlate sees 3\n");
}

TEST_F(WarmTest, AnotherEnvironmentIsAnotherProgram) {
  Install("counted", "");
  WriteScript(
      "import json, os, time\nimport counted\nif os.environ['RANK'] == '1':\n"
      "  time.sleep(1000)\n");
  AwaitTemplate(Worker());
  StartFrame other = Worker();
  other.environment.push_back("OMP_NUM_THREADS=4");
  rig_.Run(other);
  EXPECT_FALSE(rig_.Started(other.group)->warm);
  EXPECT_EQ(rig_.Started(other.group)->why_plain, "its first start");
}

// A program that fails at once is what restarts are for: the second start must be warm all the
// same.
TEST_F(WarmTest, OneThatFailsSoonAfterItsImportsIsStartedWarmNext) {
  // A package with this name is imported without being examined.
  Install("six",
          "import time\n"
          "if b'=template' not in open('/proc/self/environ', 'rb').read(): time.sleep(2)\n");
  WriteScript("import json, sys\nimport six\nsys.exit('no data')\n");
  StartFrame first = Worker();
  first.warm.quiet_ms = 60000;
  EXPECT_EQ(rig_.Run(first).exit_code, 1);
  EXPECT_EQ(rig_.Started(first.group)->why_plain, "its first start");
  StartFrame second = Worker();
  second.warm.quiet_ms = 60000;
  EXPECT_EQ(rig_.Run(second).exit_code, 1);
  EXPECT_TRUE(rig_.Started(second.group)->warm) << rig_.Started(second.group)->why_plain;
}

// Each start is given other variables. They must not be mistaken for variables that a script has
// set.
//
// Fault (python): A Python program ends twice before its imports are done -> The third start is
// forked from a template all the same
TEST_F(WarmTest, AfterTwoStartsThatEndedEarlyTheThirdIsWarm) {
  // A package with this name is imported without being examined.
  Install("six",
          "import time\n"
          "if b'=template' not in open('/proc/self/environ', 'rb').read(): time.sleep(2)\n");
  WriteScript("import six, json, os, sys\nsys.exit(int(os.environ['RANK']) - 1)\n");
  EXPECT_EQ(rig_.Run(Worker()).exit_code, 0);
  EXPECT_EQ(rig_.Run(Worker()).exit_code, 1);
  const StartFrame third = Worker();
  EXPECT_EQ(rig_.Run(third).exit_code, 2);
  EXPECT_TRUE(rig_.Started(third.group)->warm) << rig_.Started(third.group)->why_plain;
}

TEST_F(WarmTest, OneThatEndedBeforeItWasKnownWhatItImportsIsNoFirstStart) {
  Install("counted", "");
  WriteScript("import json, sys\nimport counted\n");
  StartFrame first = Worker();
  EXPECT_EQ(rig_.Run(first).exit_code, 0);
  const StartFrame second = Worker();
  EXPECT_EQ(rig_.Run(second).exit_code, 0);
  EXPECT_EQ(rig_.Started(second.group)->why_plain,
            "its first worker ended before its imports were known");
}

// Fault (python): A package is installed again between two starts of a Python program -> The
// template process from which workers are forked is discarded, and workers start plainly with the
// new package
TEST_F(WarmTest, WhatWasInstalledAnewIsNotStale) {
  Install("counted", "print('old', flush=True)\n");
  WriteScript(
      "import json, os, time\nimport counted\nif os.environ['RANK'] == '1':\n"
      "  time.sleep(1000)\n");
  AwaitTemplate(Worker());
  EndLearner();
  unlink((rig_.folder() + "/site-packages/counted.py").c_str());
  Install("counted", "print('newer', flush=True)\n");
  const StartFrame warm = Worker();
  rig_.Run(warm);
  EXPECT_FALSE(rig_.Started(warm.group)->warm);
  EXPECT_THAT(rig_.Started(warm.group)->why_plain, HasSubstr("installed anew"));
  EXPECT_EQ(OutputOf(warm.group), "newer\n");
}

// Whether the worker that recorded the imports ends, as all do in most restarts, or is kept.
//
// Fault (python): Workers start plainly because packages were installed again -> The first of them
// reports its imports, so that the next start is warm again
TEST_F(WarmTest, AfterAnInstallationImportsAreLearnedAnew) {
  WriteScript("import json, time\nimport counted\ntime.sleep(1000)\n");
  Install("counted", "print('old', flush=True)\n");
  pid_t before = AwaitTemplate(Worker()).pid;
  EndLearner();
  // Of different lengths, because a compiled file is identified by length and time in seconds.
  for (const char* text : {"newer", "newest"}) {
    unlink((rig_.folder() + "/site-packages/counted.py").c_str());
    Install("counted", absl::StrCat("print('", text, "', flush=True)\n"));
    const StartFrame restarted = Worker();
    rig_.Send(restarted);
    EXPECT_EQ(rig_.Lines(1, restarted.group)[0], text);
    EXPECT_THAT(rig_.Started(restarted.group)->why_plain, HasSubstr("installed anew"));
    ASSERT_TRUE(
        rig_.Until([&] { return NewestTemplate().pid != 0 && NewestTemplate().pid != before; }));
    before = NewestTemplate().pid;
    const StartFrame warm = Worker();
    rig_.Send(warm);
    EXPECT_EQ(rig_.Lines(1, warm.group)[0], text);
    EXPECT_TRUE(rig_.Started(warm.group)->warm) << rig_.Started(warm.group)->why_plain;
  }
}

TEST_F(WarmTest, PreloadedModulesAreThereAndTheMissingOneIsNamed) {
  Install("counted", "");
  Install("more", "print('more', flush=True)\n");
  WriteScript(
      "import json, os, sys, time\nimport counted\nif os.environ['RANK'] == '1':\n"
      "  time.sleep(1000)\nprint('more' in sys.modules)\n");
  StartFrame learner = Worker();
  learner.warm.preload = {"more", "not_there"};
  AwaitTemplate(learner);
  EXPECT_THAT(Notes(), ElementsAre(HasSubstr("not imported beforehand: not_there: Module")));
  StartFrame warm = Worker();
  warm.warm.preload = learner.warm.preload;
  rig_.Run(warm);
  EXPECT_EQ(OutputOf(warm.group), "more\nTrue\n");
}

// Imported in the template, it would take the template for the worker, and not report the forked
// worker's progress.
TEST_F(WarmTest, OurOwnModuleIsImportedByTheWorkerItself) {
  Install("counted", "");
  Install("cadre", "import os\nowner = os.getpid()\n");
  WriteScript(
      "import os, sys, time\nimport counted\nbefore = 'cadre' in sys.modules\nimport cadre\n"
      "if os.environ['RANK'] == '1':\n  time.sleep(1000)\n"
      "print(before, cadre.owner == os.getpid())\n");
  StartFrame learner = Worker();
  learner.warm.preload = {"cadre"};
  AwaitTemplate(learner);
  StartFrame warm = Worker();
  warm.warm.preload = learner.warm.preload;
  rig_.Run(warm);
  EXPECT_TRUE(rig_.Started(warm.group)->warm);
  EXPECT_EQ(OutputOf(warm.group), "False True\n");
}

// The same holds for the package that imports it. Processes that the worker forks are not workers.
//
// Fault (python): An installed package imports `cadre`, and the program is forked from a template
// -> The worker's progress counts as after a plain start, and a hang is noticed
TEST_F(WarmTest, OurOwnModuleInAPackageKnowsTheWorker) {
  Install("trainer", "import json\nimport cadre\n");
  WriteScript(
      "import os, sys, time\nbefore = 'cadre' in sys.modules\nimport trainer\n"
      "if os.environ['RANK'] == '1':\n  time.sleep(1000)\n"
      "reads, writes = os.pipe()\nos.environ['CADRE_PROGRESS_FD'] = str(writes)\n"
      "child = os.fork()\n"
      "if child == 0:\n  trainer.cadre.progress(step=3)\n  os._exit(0)\n"
      "os.waitpid(child, 0)\ntrainer.cadre.progress(step=4)\nos.close(writes)\n"
      "print(before, os.read(reads, 100))\n");
  const auto worker = [this] {
    StartFrame start = Worker();
    absl::StrAppend(&start.environment[1], ":", std::filesystem::current_path().string(),
                    "/python");
    return start;
  };
  AwaitTemplate(worker());
  const StartFrame warm = worker();
  rig_.Run(warm);
  EXPECT_TRUE(rig_.Started(warm.group)->warm) << rig_.Started(warm.group)->why_plain;
  EXPECT_EQ(OutputOf(warm.group), "False b'step=4\\n'\n") << rig_.Output(kStderrStream, warm.group);
}

TEST_F(WarmTest, AStopThatOvertakesTheForkEndsTheWorkerUnbegun) {
  Install("counted", "");
  WriteScript(
      "import json, os, time\nimport counted\nopen('began-' + os.environ['RANK'], 'w')\n"
      "time.sleep(1000)\n");
  AwaitTemplate(Worker());
  const StartFrame warm = Worker();
  rig_.Send(warm);
  rig_.Send(StopFrame{warm.group, 20000});
  rig_.Until([&] { return rig_.AllGoneCount(warm.group) == 1; });
  EXPECT_EQ(rig_.Exit(warm.group)->signal, SIGKILL);
  EXPECT_NE(access(absl::StrCat(rig_.folder(), "/began-", warm.group).c_str(), F_OK), 0);
}

TEST_F(WarmTest, NothingIsLeftOfATemplate) {
  Install("counted", "");
  WriteScript("import json, time\nimport counted\ntime.sleep(1000)\n");
  const TemplateFrame there = AwaitTemplate(Worker());
  rig_.Close();
  EXPECT_TRUE(WaitUntilDead(there.pid));
}

TEST_F(WarmTest, ModulesRunByNameAndOnesWithoutAnythingToImport) {
  Install("counted", "");
  Install("pack",
          "import os, sys, time\nimport counted, json\n"
          "print(__name__, __spec__.name, sys.argv[1:], flush=True)\n"
          "if os.environ['RANK'] == '1':\n  time.sleep(1000)\n");
  StartFrame learner = Worker();
  learner.argv = {kPython, "-m", "pack", "a"};
  learner.warm.script = "";
  learner.warm.module = "pack";
  AwaitTemplate(learner);
  StartFrame warm = Worker();
  warm.argv = learner.argv;
  warm.warm = learner.warm;
  rig_.Run(warm);
  EXPECT_TRUE(rig_.Started(warm.group)->warm);
  EXPECT_EQ(OutputOf(warm.group), "__main__ pack ['a']\n");
  EXPECT_EQ(rig_.Output(kStderrStream, warm.group), "");
}

// Starts of Python programs that come while their template imports.

class WarmWaitTest : public WarmTest {
 protected:
  bool HasFile(const std::string& name) const {
    return access((rig_.folder() + "/" + name).c_str(), F_OK) == 0;
  }
  // Starts a worker whose template begins to import and continues until a file "go" exists. The
  // program's own imports have taken kImports. The packages have names that need no examination.
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
  // Makes the first worker import until it is killed, and a template import for ever.
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
    // The worker that records the imports is stopped last.
    for (auto worker = workers.rbegin(); worker != workers.rend(); ++worker) {
      rig_.Stop(0, worker->group);
    }
  }
  // The supervisor has read it on return, since it reads frames in order.
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

// Otherwise it would wait for twice the time of the imports.
TEST_F(WarmWaitTest, AStartDoesNotWaitForATemplateThatMustBeginAnew) {
  HoldTemplate(
      "import threading, time\n"
      "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n");
  const StartFrame plain = Worker();
  SendAndSee(plain);
  EXPECT_FALSE(rig_.Started(plain.group).has_value());
  WriteFile(rig_.folder() + "/go", "");
  rig_.Until([&] { return rig_.Exit(plain.group).has_value(); });
  EXPECT_EQ(rig_.Started(plain.group)->why_plain, "its template had to be started again");
  EXPECT_EQ(OutputOf(plain.group), "began\n");
}

// The template would only compete for processors with workers that import.
//
// Fault (python): The template process is not ready when its program starts again -> The start
// waits once, no longer than the imports take; then the template is ended and workers import by
// themselves
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

// A template would import for as long as the worker itself, and not even all packages.
//
// Fault (python): A worker is killed while it imports its packages -> The next start does not wait
// for a template
TEST_F(WarmWaitTest, AStartAfterAKillAmidItsImportsWaitsForNoTemplate) {
  HoldImport();
  KillAmidImports({Worker()});
  const StartFrame plain = Worker();
  EXPECT_EQ(rig_.Run(plain).exit_code, 0);
  EXPECT_EQ(rig_.Started(plain.group)->why_plain,
            "its first worker ended before its imports were known");
  EXPECT_EQ(OutputOf(plain.group), "began\n");
}

// Workers that share a processor import more slowly than a template that imports alone.
//
// Fault (python): A worker is killed while it imports, and workers share processors -> The next
// start waits for the template, since plain imports would take longer
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

// Packages that derive something from values that differ between runs while they are imported:
// after a warm start each worker must have the same as after a plain start.

// The end of a script: the first worker stays, and its imports are recorded.
constexpr char kStays[] = "\nif os.environ['RANK'] == '1':\n  time.sleep(1000)\n";

// If each worker is as after a plain start, all print the same.
struct Package {
  const char* name;
  const char* source;  // of the module `pack`
  const char* script;  // imports it
  const char* why;     // why it is left to the workers; empty: it is not
};
std::ostream& operator<<(std::ostream& out, const Package& package) { return out << package.name; }

constexpr char kDrawsAnew[] =
    "import pack\nopen('drawn', 'a').write('%s\\n' % pack.drawn)\n"
    "lines = open('drawn').read().split()\nprint(len(lines) == len(set(lines)))\n";

const Package kPackages[] = {
    {"Clean", "import json, os\nhome = os.environ.get('HOME')\n", "import pack\nprint(pack.home)\n",
     ""},
    {"CopiesTheEnvironment", "import os\nvalues = dict(os.environ)\n",
     "import pack\nprint(pack.values.get('RANK') == os.environ['RANK'])\n",
     "copies the environment"},
    {"AsksForAVariableOfTheRank", "import os\nrank = os.getenv('RANK', '0')\n",
     "import pack\nprint(pack.rank == os.environ['RANK'])\n", "reads RANK"},
    {"LooksForPrefixesOfVariables",
     "import os\nranks = [os.environ[k] for k in os.environ if k.startswith('RAN')]\n",
     "import pack\nprint(pack.ranks == [os.environ['RANK']])\n", "copies the environment"},
    {"SetsAVariable", "import os\nos.environ['PACK_SAYS'] = 'yes'\ndel os.environ['TORCH']\n",
     "import pack\nprint(os.environ.get('PACK_SAYS'), os.environ.get('TORCH'))\n", ""},
    {"IsToldByAFunction", "import os\nhub = os.environ.get('HUB')\n",
     "def load():\n  os.environ['HUB'] = 'here'\nload()\nimport pack\nprint(pack.hub)\n",
     "runs code of its own"},
    {"IsToldByAModule", "import os\nhub = os.environ.get('HUB')\n",
     "import settings, pack\nprint(pack.hub)\n", "runs code of its own"},
    {"IsToldByAPackage", "import os\nhub = os.environ.get('HUB')\n",
     "import loads_env, pack\nprint(pack.hub)\n", "runs code of its own"},
    {"MakesATemporaryFolder",
     "import atexit, shutil, tempfile\nfolder = tempfile.mkdtemp()\n"
     "atexit.register(shutil.rmtree, folder)\n",
     "import pack\nprint(os.path.isdir(pack.folder))\n", "writes /.* while it is imported"},
    {"MakesATemporaryFile", "import tempfile\nfile = tempfile.NamedTemporaryFile()\n",
     "import pack\nprint(os.path.exists(pack.file.name))\n", "writes /.* while it is imported"},
    {"MakesAGenerator", "import random\ndrawn = random.Random().random()\n", kDrawsAnew,
     "makes a generator"},
    {"MakesAnIdentifier", "import uuid\ndrawn = uuid.uuid4()\n", kDrawsAnew,
     "draws random numbers"},
    {"TakesTheTime", "import time\ndrawn = time.time()\n", kDrawsAnew, "asks for the time"},
    {"TakesTheDate", "from datetime import datetime\ndrawn = datetime.now().isoformat()\n",
     kDrawsAnew, "asks for the time"},
    {"SeedsTheGenerator", "import random\nrandom.seed(7)\n",
     "import pack, random\nprint(random.random())\n", "draws from the generator of random"},
    {"KnowsItsProcess", "import os\npid = os.getpid()\n",
     "import pack\nprint(pack.pid == os.getpid())\n", "asks for the number of its process"},
    {"MakesALock", "import multiprocessing\nlock = multiprocessing.Lock()\n",
     "import pack\nprint(pack.lock.acquire(timeout=1))\n", "memory or a lock"},
    {"LooksAtTheProgram", "import __main__\nfile = getattr(__main__, '__file__', None)\n",
     "import pack\nprint(pack.file)\n", "reads __main__"},
    {"LooksAtThePath", "import sys\nfirst = sys.path[0]\n", "import pack\nprint(pack.first)\n",
     "reads sys.path"},
    {"ChangesThePath", "import sys\nsys.path.insert(0, '/pack')\n",
     "import pack\nprint(sys.path[:2])\n", "changes sys.path"},
    {"ReadsAFileOfTheProgram", "config = open('config').read()\n",
     "open('config', 'a').close()\nimport settings\n"
     "print(__import__('pack').config == open('config').read())\n"
     "open('config', 'a').write('more')\n",
     "runs code of its own"},
    {"LooksForAFileOfTheProgram", "import os\nconfigured = os.path.exists('config')\n",
     "import pack\nprint(pack.configured == os.path.exists('config'))\n"
     "open('config', 'a').close()\n",
     "accesses "},
    {"LeavesADescriptor", "import os\nends = os.pipe()\n",
     "import pack\nprint(os.read(pack.ends[0], os.write(pack.ends[1], b'%d' % os.getpid())) == "
     "b'%d' % os.getpid())\n",
     "leaves a descriptor open"},
    {"IsImportedByAnother", "import inner\nrank = inner.values.get('RANK')\n",
     "import pack\nprint(pack.rank == os.environ['RANK'])\n", "imports inner"},
    {"FindsAModuleOfTheProgram", "from colours import colour\n",
     "import pack\nprint(pack.colour)\n", "finds another colours"},
    {"FindsAnotherStandardModule", "from colorsys import colour\n",
     "import pack\nprint(pack.colour)\n", "finds another colorsys"},
    {"UsesWhatTheProgramPutInPlace", "from stub import value\n",
     "import types\nsys.modules['stub'] = types.ModuleType('stub')\nsys.modules['stub'].value = 3\n"
     "import pack\nprint(pack.value)\n",
     "runs code of its own"},
    {"UsesAModuleOfTheProgram", "import settings\nhub = settings.os.environ['HUB']\n",
     "import pack\nprint(pack.hub)\n", "imports settings, which is not an installed package"},
};

class WarmPackageTest : public WarmTest, public ::testing::WithParamInterface<Package> {};

// Fault (python): A package, on import, depends on the run: it copies the environment, draws random
// numbers, or makes a temporary folder or a lock -> Each worker imports that package itself, and
// the launcher logs why
TEST_P(WarmPackageTest, EachWorkerIsAsAPlainOne) {
  const Package& package = GetParam();
  Install("counted", "import json\n");
  Install("inner", "import os\nvalues = os.environ.copy()\n");
  Install("loads_env", "import settings\n");
  Install("colours", "colour = 'wrong'\n");
  Install("pack", package.source);
  WriteFile(rig_.folder() + "/settings.py", "import os\nos.environ['HUB'] = 'here'\n");
  for (const char* name : {"colours", "colorsys"}) {
    WriteFile(absl::StrCat(rig_.folder(), "/", name, ".py"), "colour = 'right'\n");
  }
  WriteScript(absl::StrCat("import os, sys, time, counted\n", package.script, kStays));
  AwaitTemplate(Worker());
  const std::string notes = absl::StrJoin(Notes(), "\n");
  if (*package.why == '\0') {
    EXPECT_THAT(notes, Not(HasSubstr("pack: ")));
  } else {
    EXPECT_THAT(notes, testing::ContainsRegex(absl::StrCat("pack: .*", package.why)));
  }
  StartFrame plain = Worker();
  plain.warm = WarmOptions();
  rig_.Run(plain);
  for (int i = 0; i < 2; ++i) {
    const StartFrame warm = Worker();
    rig_.Run(warm);
    EXPECT_TRUE(rig_.Started(warm.group)->warm) << rig_.Started(warm.group)->why_plain;
    EXPECT_EQ(OutputOf(warm.group), OutputOf(plain.group));
    EXPECT_EQ(rig_.Output(kStderrStream, warm.group), rig_.Output(kStderrStream, plain.group));
  }
  EXPECT_NE(OutputOf(plain.group), "") << rig_.Output(kStderrStream, plain.group);
  EXPECT_THAT(OutputOf(plain.group), Not(HasSubstr("False")));
}

INSTANTIATE_TEST_SUITE_P(, WarmPackageTest, ::testing::ValuesIn(kPackages),
                         [](const auto& info) { return std::string(info.param.name); });

class WarmCleanTest : public WarmTest {
 protected:
  std::string FirstLine(const StartFrame& worker) {
    rig_.Send(worker);
    return rig_.Lines(1, worker.group)[0];
  }
  // A wrapper around the interpreter.
  std::string Wrapper(const std::string& line) {
    const std::string path = rig_.folder() + "/python3";
    WriteFile(path, absl::StrCat("#!/bin/sh\n", line, "\nexec ", kPython, " \"$@\"\n"));
    chmod(path.c_str(), 0755);
    return path;
  }
};

// Fault (python): A `.pth` file, a package or a script around the interpreter sets environment
// variables -> Forked workers have these variables too
TEST_F(WarmCleanTest, WhatAScriptAroundTheInterpreterSetsIsKept) {
  Install("counted", "");
  WriteScript(absl::StrCat("import os, time, counted\n",
                           "print(os.environ.get('AROUND'), 'TORCH' in os.environ, flush=True)",
                           kStays));
  const auto worker = [&, python = Wrapper("export AROUND=yes; unset TORCH")] {
    StartFrame start = Worker();
    start.argv[0] = python;
    return start;
  };
  AwaitTemplate(worker());
  const StartFrame warm = worker();
  EXPECT_EQ(FirstLine(warm), "yes False");
  EXPECT_TRUE(rig_.Started(warm.group)->warm) << rig_.Started(warm.group)->why_plain;
}

// Fault (python): A script around the interpreter sets variables that belong to a rank -> Workers
// are not forked from a template but start plainly
TEST_F(WarmCleanTest, WhereItSetsWhatBelongsToTheRankWorkersStartPlainly) {
  Install("counted", "");
  WriteScript(
      absl::StrCat("import os, time, counted\nprint(os.environ['DEVICE'], flush=True)", kStays));
  const auto worker = [&, python = Wrapper("export DEVICE=${RANK:-1}")] {
    StartFrame start = Worker();
    start.argv[0] = python;
    return start;
  };
  rig_.Send(worker());
  rig_.Until([&] { return !Notes().empty(); });
  EXPECT_THAT(Notes()[0],
              HasSubstr("a script around the interpreter, or a .pth file, sets DEVICE"));
  const StartFrame plain = worker();
  EXPECT_EQ(FirstLine(plain), "2");
  EXPECT_FALSE(rig_.Started(plain.group)->warm);
}

// As PyTorch does. The packages have names that need no examination.
TEST_F(WarmCleanTest, WhatIsKnownIsLeftToTheWorkersWhereAVariableThatItMayReadIsSetBefore) {
  Install("counted", "");
  Install("pytz", "");
  Install("six", "import os\nthreads = os.environ.get('OMP_OF_SIX')\n");
  WriteScript(
      absl::StrCat("import os, time, counted\nos.environ['OTHER'] = '1'\nimport pytz\n"
                   "os.environ['OMP_OF_SIX'] = '3'\nimport six\n"
                   "print(six.threads, flush=True)",
                   kStays));
  AwaitTemplate(Worker());
  EXPECT_THAT(Notes(), testing::ElementsAre(HasSubstr("six: the program sets OMP_OF_SIX before")));
  const StartFrame warm = Worker();
  EXPECT_EQ(FirstLine(warm), "3");
  EXPECT_TRUE(rig_.Started(warm.group)->warm) << rig_.Started(warm.group)->why_plain;
}

// An installed file may be a link to the file that a developer edits.
//
// Fault (python): A file that the template process has imported is edited in place -> Workers start
// plainly and read the edited file
TEST_F(WarmCleanTest, AFileThatIsEditedInPlaceIsReadAnew) {
  Install("counted", "");
  WriteFile(rig_.folder() + "/worked_on.py", "print('old', flush=True)\n");
  ASSERT_EQ(symlink((rig_.folder() + "/worked_on.py").c_str(),
                    (rig_.folder() + "/site-packages/linked.py").c_str()),
            0);
  WriteScript(absl::StrCat("import os, time, counted, linked", kStays));
  AwaitTemplate(Worker());
  const StartFrame before = Worker();
  EXPECT_EQ(FirstLine(before), "old");
  EXPECT_TRUE(rig_.Started(before.group)->warm) << rig_.Started(before.group)->why_plain;
  EndLearner();
  WriteFile(rig_.folder() + "/worked_on.py", "print('newer', flush=True)\n");
  const StartFrame after = Worker();
  EXPECT_EQ(FirstLine(after), "newer");
  EXPECT_THAT(rig_.Started(after.group)->why_plain, HasSubstr("installed anew: "));
}

TEST_F(WarmCleanTest, AModuleOfTheProgramThatAnInstalledOneImportsIsReadAnew) {
  Install("pack", "import worked_on\n");
  WriteFile(rig_.folder() + "/worked_on.py", "print('old', flush=True)\n");
  WriteScript(absl::StrCat("import os, time, json\nimport pack", kStays));
  AwaitTemplate(Worker());
  EndLearner();
  WriteFile(rig_.folder() + "/worked_on.py", "print('newer', flush=True)\n");
  const StartFrame warm = Worker();
  EXPECT_EQ(FirstLine(warm), "newer");
  EXPECT_TRUE(rig_.Started(warm.group)->warm) << rig_.Started(warm.group)->why_plain;
}

TEST_F(WarmCleanTest, AFileThatAPackageReadsWhileItIsImportedIsReadAnew) {
  Install("pack",
          "import os\nwith open(os.path.join(os.path.dirname(__file__), 'data.txt')) as file:\n"
          "  print(file.read(), flush=True)\n");
  WriteFile(rig_.folder() + "/site-packages/data.txt", "old");
  WriteScript(absl::StrCat("import os, time, pack", kStays));
  AwaitTemplate(Worker());
  EndLearner();
  WriteFile(rig_.folder() + "/site-packages/data.txt", "newer");
  EXPECT_EQ(FirstLine(Worker()), "newer");
}

// With PYTHONPATH=$PWD, which many users set, checkpoints are written there.
//
// Fault (python): A new file appears in a folder of `PYTHONPATH` -> Workers start plainly if an
// import would find the new file first; a checkpoint in that folder changes nothing
TEST_F(WarmCleanTest, OnlyNewFilesThatAnImportWouldFindMakeAStartPlain) {
  Install("counted", "print('installed', flush=True)\n");
  WriteScript(absl::StrCat("import os, time, counted", kStays));
  const auto worker = [this] {
    StartFrame start = Worker();
    start.environment[1] =
        absl::StrCat("PYTHONPATH=", rig_.folder(), ":", rig_.folder(), "/site-packages");
    return start;
  };
  AwaitTemplate(worker());
  WriteFile(rig_.folder() + "/checkpoint.pt", "");
  mkdir((rig_.folder() + "/counted").c_str(), 0755);
  const StartFrame warm = worker();
  EXPECT_EQ(FirstLine(warm), "installed");
  EXPECT_TRUE(rig_.Started(warm.group)->warm) << rig_.Started(warm.group)->why_plain;
  WriteFile(rig_.folder() + "/counted/__init__.py", "print('of the program', flush=True)\n");
  const StartFrame plain = worker();
  EXPECT_EQ(FirstLine(plain), "of the program");
  EXPECT_FALSE(rig_.Started(plain.group)->warm);
}

// It must be distinguished from a program that has imported everything and is idle.
//
// Fault (python): One import takes longer than the pause after which imports count as finished ->
// It still belongs to the imports that are reported, and the template is made after it
TEST_F(WarmCleanTest, AnImportThatTakesLongerThanTheRestIsPartOfTheImports) {
  Install("slow",
          "import time\nif b'=learn' in open('/proc/self/environ', 'rb').read():\n"
          "  time.sleep(2)\n");
  WriteScript(absl::StrCat("import os, time, slow", kStays));
  AwaitTemplate(Worker());
  ASSERT_TRUE(ImportsOf(learner_).has_value());
  EXPECT_GE(*ImportsOf(learner_), 2000u);
}

}  // namespace
}  // namespace cadre::supervisor
