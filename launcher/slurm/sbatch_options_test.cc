// Tests sbatch's options. How lines of a script are read was compared with sbatch of Slurm 22.05.
#include "launcher/slurm/sbatch_options.h"

#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// The options in these lines below "#!/bin/sh", as "LINE NAME=VALUE"; or the error.
std::string Texts(const std::string& lines) {
  std::vector<std::string> notices;
  const auto options = ReadSbatchLines(absl::StrCat("#!/bin/sh\n", lines), "job.sh", &notices);
  if (!options.ok()) return std::string(options.status().message());
  std::string text;
  for (const GivenOption& option : *options) {
    EXPECT_THAT(option.place, StartsWith("job.sh:"));
    const std::vector<std::string> parts = absl::StrSplit(option.place, ':');
    absl::StrAppend(&text, text.empty() ? "" : ", ", parts[1], " ", option.name,
                    option.has_value ? absl::StrCat("=", option.value) : "");
  }
  for (const std::string& notice : notices) absl::StrAppend(&text, " | ", notice);
  return text;
}

std::vector<GivenOption> Parsed(const std::vector<std::string>& arguments) {
  const auto parsed = ParseOptions(arguments, SbatchTable());
  EXPECT_OK(parsed);
  return parsed.ok() ? parsed->options : std::vector<GivenOption>();
}

TEST(SbatchFlagsTest, EachHasOneNameAndSaysWhatBecomesOfIt) {
  std::set<std::string> names;
  for (const SbatchFlag& flag : SbatchFlags()) {
    EXPECT_TRUE(names.insert(flag.name).second) << flag.name;
    if (flag.short_name != '\0') {
      EXPECT_TRUE(names.insert(std::string(1, flag.short_name)).second) << flag.short_name;
    }
    EXPECT_EQ(*flag.text == '\0', flag.effect == SbatchEffect::kSame) << flag.name;
  }
}

// The page's table is for users what the one in the code is for sbatch.
TEST(SbatchFlagsTest, EachIsOnThePageForSlurmsUsers) {
  std::ostringstream page;
  page << std::ifstream("docs/from_slurm.md").rdbuf();
  for (const SbatchFlag& flag : SbatchFlags()) {
    EXPECT_THAT(page.str(), HasSubstr(absl::StrCat("`--", flag.name))) << flag.name;
  }
}

TEST(SbatchLinesTest, FormsOfOptions) {
  EXPECT_EQ(Texts("#SBATCH --nodes=2 --ntasks 4\n#SBATCH\t-N2\t-c 3\n"),
            "2 nodes=2, 2 ntasks=4, 3 nodes=2, 3 cpus-per-task=3");
  EXPECT_EQ(Texts("#SBATCH -Wn3 --exclusive --exclusive=user --nice\n"),
            "2 wait, 2 ntasks=3, 2 exclusive, 2 exclusive=user, 2 nice");
  EXPECT_EQ(Texts("#SBATCH--comment=a\n#SBATCH\n#SBATCH --comment=\n"), "2 comment=a, 4 comment=");
  EXPECT_EQ(Texts("#SBATCH --job-nam=x --ntasks-per-n=2\n"), "2 job-name=x, 2 ntasks-per-node=2");
}

TEST(SbatchLinesTest, QuotesAndComments) {
  EXPECT_EQ(Texts("#SBATCH --comment=\"a b#c\" -n 2 # --mem=1\n"), "2 comment=a b#c, 2 ntasks=2");
  EXPECT_EQ(Texts("#SBATCH --comment=a#b -n 2\n"), "2 comment=a");
  EXPECT_EQ(Texts("#SBATCH --comment=a\"b c\"d'e f' -n 2\n"), "2 comment=ab cde f, 2 ntasks=2");
  EXPECT_EQ(Texts("#SBATCH --comment='x \"y' --wckey=\"it's\"\n"), "2 comment=x \"y, 2 wckey=it's");
  EXPECT_EQ(Texts("#SBATCH --comment=a\\#b --wckey=\"\\\\\\\"\"\n"), "2 comment=a#b, 2 wckey=\\\"");
  EXPECT_EQ(Texts("#SBATCH -n 2 \\\n"), "2 ntasks=2");
  EXPECT_EQ(Texts("#SBATCH --comment=a\\ -n 2 --wckey=\"b\\ c\"\n"),
            "2 comment=a, 2 ntasks=2, 2 wckey=b c");
}

TEST(SbatchLinesTest, TheyEndAtTheFirstCommand) {
  EXPECT_EQ(Texts("# a\n\n \t\n  # b\n#SBATCH -n 2\ntrue\n#SBATCH -N 3\n"), "6 ntasks=2");
  EXPECT_EQ(Texts(" #SBATCH -n 2\n##SBATCH -n 2\n# SBATCH -n 2\n#sbatch -n 2\n#SBATCH -N 3"),
            "6 nodes=3");
  EXPECT_EQ(Texts("#PBS -l x\n#SBATCH -n 2\n"),
            "3 ntasks=2 | job.sh:2: lines of #PBS and #BSUB have no effect; write #SBATCH");
}

// Fault (input): An #SBATCH line is wrong -> sbatch names the line and what is wrong in it
TEST(SbatchLinesTest, Errors) {
  EXPECT_EQ(Texts("#SBATCH -n 2\n#SBATCH --nodez=2\n"),
            "job.sh:3: unrecognized option '--nodez'; did you mean '--nodes'?");
  EXPECT_EQ(Texts("#SBATCH --ntasks\n#SBATCH --mem=1\n"),
            "job.sh:2: option '--ntasks' requires an argument");
  EXPECT_EQ(Texts("#SBATCH --hold=3\n"), "job.sh:2: option '--hold' doesn't allow an argument");
  EXPECT_THAT(Texts("#SBATCH --ntasks-per=1\n"), HasSubstr("'--ntasks-per' is ambiguous"));
  EXPECT_THAT(Texts("#SBATCHX --nice\n"), HasSubstr("\"X\" is no option"));
  EXPECT_THAT(Texts("#SBATCH --nice 5\n"), HasSubstr("\"5\" is no option"));
  EXPECT_THAT(Texts("#SBATCH --comment=\"a b\n"), HasSubstr("\" has no second one"));
  EXPECT_THAT(Texts("#SBATCH -n 2 : -n 3\n"), HasSubstr("heterogeneous"));
  EXPECT_THAT(Texts("#SBATCH hetjob\n"), HasSubstr("heterogeneous"));
  EXPECT_THAT(Texts("#SBATCH --wrap=x\n"), HasSubstr("command line of sbatch alone"));
  EXPECT_EQ(Texts("#SBATCH --comment=\xff\n"), "job.sh:2: '--comment=\\xff' is not UTF-8 text");
}

// Fault (input): A file is no batch script -> One line says so, and why
TEST(BatchScriptFileTest, Errors) {
  EXPECT_OK(CheckBatchScript("#!/bin/bash\necho \xff\r x\n", "job.sh"));
  const auto error = [](const std::string& script) {
    return std::string(CheckBatchScript(script, "job.sh").message());
  };
  EXPECT_EQ(error(""), "job.sh: the batch script is empty");
  EXPECT_EQ(error(" \n\n"), "job.sh: the batch script is empty");
  EXPECT_THAT(error("echo\n"), HasSubstr("must begin with '#!'"));
  EXPECT_THAT(error(" #!/bin/sh\n"), HasSubstr("must begin with '#!'"));
  EXPECT_THAT(error("#! \necho\n"), StartsWith("job.sh:1: no interpreter"));
  EXPECT_THAT(error(std::string("#!/bin/sh\na\0b\n", 14)), StartsWith("job.sh:2: "));
  EXPECT_THAT(error("#!/bin/sh\r\necho\r\n"), StartsWith("job.sh:1: the line ends with a DOS"));
}

TEST(SbatchVariablesTest, OfOptions) {
  const auto texts = [](const std::map<std::string, std::string>& environment) {
    std::vector<std::string> all;
    for (const GivenOption& option : ReadSbatchVariables(environment)) {
      all.push_back(absl::StrCat(option.place, " ", option.name,
                                 option.has_value ? absl::StrCat("=", option.value) : ""));
    }
    return all;
  };
  EXPECT_THAT(texts({{"SBATCH_MEM_PER_NODE", "4G"}, {"SBATCH_TIMELIMIT", "5"}, {"SBATCH_X", "1"}}),
              ElementsAre("SBATCH_MEM_PER_NODE mem=4G", "SBATCH_TIMELIMIT time=5"));
  for (const char* const on : {"", "yes", "1", "7"}) {
    EXPECT_THAT(texts({{"SBATCH_WAIT", on}}), ElementsAre("SBATCH_WAIT wait")) << on;
  }
  for (const char* const off : {"0", "no", "true"}) {
    EXPECT_THAT(texts({{"SBATCH_WAIT", off}}), IsEmpty()) << off;
  }
  EXPECT_THAT(texts({{"SBATCH_EXCLUSIVE", ""}}), ElementsAre("SBATCH_EXCLUSIVE exclusive"));
  EXPECT_THAT(texts({{"SBATCH_GPUS", ""}, {"SBATCH_GRES", "\xff"}}), IsEmpty());
}

TEST(SbatchOptionsTest, TheCommandLineWinsOverVariablesAndTheseOverTheScript) {
  const auto options = CombineSbatchOptions(Parsed({"-N1", "-n1", "-c1", "-c2"}),
                                            Parsed({"-N2", "-n2"}), Parsed({"-N3"}));
  ASSERT_OK(options);
  EXPECT_EQ(options->Find("nodes")->value, "3");
  EXPECT_EQ(options->Find("ntasks")->value, "2");
  EXPECT_EQ(options->Find("cpus-per-task")->value, "2");
  EXPECT_EQ(options->Find("mem"), nullptr);
}

TEST(SbatchOptionsTest, OneWayToAskForMemoryOrGpusReplacesTheOthersOfLesserPlaces) {
  const auto options =
      CombineSbatchOptions(Parsed({"--mem-per-cpu=1G", "--gres=gpu:4", "--cpus-per-gpu=2"}), {},
                           Parsed({"--mem=9G", "--gpus-per-task=1", "-c3"}));
  ASSERT_OK(options);
  for (const char* const replaced : {"mem-per-cpu", "gres", "cpus-per-gpu"}) {
    EXPECT_FALSE(options->Has(replaced)) << replaced;
  }
  EXPECT_TRUE(options->Has("mem") && options->Has("gpus-per-task"));
}

TEST(SbatchOptionsTest, WhatHasNoEffectIsSaidInALineEach) {
  const auto options = CombineSbatchOptions(
      Parsed({"--verbose", "--exclusive", "-p", "gpu", "--partition=gpu"}), {}, {});
  ASSERT_OK(options);
  EXPECT_THAT(options->notices,
              ElementsAre(StartsWith("--exclusive has no effect in a Cadre cluster: "),
                          StartsWith("--partition has no effect in a Cadre cluster: ")));
  EXPECT_THAT(options->given, IsEmpty());
}

// Fault (input): sbatch is asked for what a cluster of Cadre does not do, and the job would run
// in another way -> It is refused, with a line that says what to do
TEST(SbatchOptionsTest, WhatWouldRunInAnotherWayIsRefused) {
  for (const SbatchFlag& flag : SbatchFlags()) {
    if (flag.effect != SbatchEffect::kRefused) continue;
    const std::string option = absl::StrCat("--", flag.name);
    const auto options = CombineSbatchOptions(
        {}, {}, Parsed({flag.value == OptionValue::kNone ? option : option + "=1"}));
    EXPECT_THAT(options, StatusIs(kInvalid, StartsWith(option + ": "))) << option;
  }
}

TEST(SbatchOptionsTest, OfRequeueAndNoRequeueTheLastCounts) {
  const auto options = CombineSbatchOptions(Parsed({"--requeue", "--no-requeue"}), {}, {});
  ASSERT_OK(options);
  EXPECT_TRUE(options->Has("no-requeue") && !options->Has("requeue"));
  const auto wins = CombineSbatchOptions(Parsed({"--no-requeue"}), {}, Parsed({"--requeue"}));
  ASSERT_OK(wins);
  EXPECT_TRUE(wins->Has("requeue") && !wins->Has("no-requeue"));
}

// What asks for its effect is not said to have none.
TEST(SbatchOptionsTest, OptionsOfTheQueueHaveTheirEffect) {
  const auto options = CombineSbatchOptions(
      {}, {},
      Parsed({"--signal=USR1@90", "--hold", "--begin=now", "--deadline=now+1day",
              "--dependency=singleton", "--kill-on-invalid-dep=no", "--nodelist=n1", "--exclude=n2",
              "--constraint=a", "--array=0-3", "--no-requeue"}));
  ASSERT_OK(options);
  EXPECT_THAT(options->notices, IsEmpty());
  EXPECT_EQ(options->given.size(), 11u);
}

TEST(SbatchHelpTest, HasOptionsWithAnEffectAndFitsItsLines) {
  for (const SbatchFlag& flag : SbatchFlags()) {
    const bool shown = absl::StrContains(SbatchHelp(), absl::StrCat("--", flag.name));
    if (flag.effect == SbatchEffect::kMapped && flag.form != nullptr) {
      EXPECT_TRUE(shown) << flag.name;
    }
  }
  for (const absl::string_view line : absl::StrSplit(SbatchHelp(), '\n')) {
    EXPECT_LE(line.size(), 100u) << line;
  }
}

}  // namespace
}  // namespace cadre::launcher
