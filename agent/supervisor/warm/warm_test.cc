// Warm starts of Python programs, with the real supervisor and the machine's interpreter.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "agent/supervisor/processes/process_scan.h"
#include "agent/supervisor/warm/warm_rig.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::supervisor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

// How each of these ends, and what it says of it.
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
      // It has an environment that can be read only once it runs.
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
  // What finds it when all else fails.
  EXPECT_EQ(ReadMarker(pid), ReadMarker(std::stoi(pids[1])));
  EXPECT_NE(ReadMarker(pid), ReadMarker(there.pid));
  EXPECT_EQ(InspectProcess(pid)->parent, rig_.ready().pid);
  rig_.Stop(0, warm.group);
  EXPECT_EQ(rig_.Exit(warm.group)->signal, SIGKILL);
  EXPECT_TRUE(WaitUntilDead(std::stoi(pids[1])));
  // The template is not in the way of that, and lives.
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
  // The machine's own sitecustomize, at most.
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
  // It stands before the installed one of this name in the program's path.
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

// A program that fails at once is what restarts are for: the second start is warm all the same.
TEST_F(WarmTest, OneThatFailsSoonAfterItsImportsIsStartedWarmNext) {
  // The name of one at which no look is needed.
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

// Each is given variables of its own, which are not to be taken for what a script has set.
TEST_F(WarmTest, AfterTwoStartsThatEndedEarlyTheThirdIsWarm) {
  // The name of one at which no look is needed.
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
  EXPECT_EQ(rig_.Started(second.group)->why_plain, "it ended before it was known what it imports");
}

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

// Whether the worker that learned them ends, as all do in most restarts, or is kept.
TEST_F(WarmTest, AfterAnInstallationImportsAreLearnedAnew) {
  WriteScript("import json, time\nimport counted\ntime.sleep(1000)\n");
  Install("counted", "print('old', flush=True)\n");
  pid_t before = AwaitTemplate(Worker()).pid;
  EndLearner();
  // Of different lengths: a compiled file goes by that, and by seconds.
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

// It would take the template for the worker, and say nothing of the progress of what is forked.
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

// So is the package that imports it. What the worker forks is none.
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

}  // namespace
}  // namespace cadre::supervisor
