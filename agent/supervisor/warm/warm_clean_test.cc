// Packages that make something of their own of what differs between runs, while they are imported:
// each worker of a warm start has it as after a plain start.
#include <sys/stat.h>
#include <unistd.h>

#include <ostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/supervisor/warm/warm_rig.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::supervisor {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The last of a script: the first worker stays, and is learned from.
constexpr char kStays[] = "\nif os.environ['RANK'] == '1':\n  time.sleep(1000)\n";

// What is printed is the same for all workers, where each is as a plain one.
struct Package {
  const char* name;
  const char* source;  // of the module `pack`
  const char* script;  // imports it
  const char* why;     // it is left to the workers; empty: it is not
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
     "looks at "},
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
     "import pack\nprint(pack.hub)\n", "imports settings, which is no installed package"},
};

class WarmPackageTest : public WarmTest, public ::testing::WithParamInterface<Package> {};

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
  // A program around the interpreter.
  std::string Wrapper(const std::string& line) {
    const std::string path = rig_.folder() + "/python3";
    WriteFile(path, absl::StrCat("#!/bin/sh\n", line, "\nexec ", kPython, " \"$@\"\n"));
    chmod(path.c_str(), 0755);
    return path;
  }
};

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

// As PyTorch does. They have names of packages at which no look is needed.
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

// An installed file may be a link to where it is worked on.
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

// With PYTHONPATH=$PWD, as many have it, that is where checkpoints go.
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

// It is told apart from a program that has imported all and is at rest.
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
