#include "launcher/spec/job_spec.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "launcher/spec/yaml_tree.h"
#include "nlohmann/json.hpp"

namespace cadre::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kWhole[] = R"(name: mnist
command: [./train, --epochs, "10"]
nodes: 2..4
workers_per_node: gpu
env: {NCCL_DEBUG: WARN, FLAG: no, NUMBER: 0x10}
working_dir: .
role: trainer
agent_store: false
encrypt: true
resources: {gpus_per_worker: 1, cpus_per_worker: 4, memory_per_worker: 8GiB}
placement: {bind: numa, spread_over: switch, nodes: [n1, n2], exclude: [n3], labels: [rack=1|rack=2, a100]}
rendezvous: {join_timeout: 10m, settle: 3s}
timeouts: {start: 5m, progress: 10m, silence: 20m, stop_grace: 30s, total: 24h, warning: 5m, warning_signal: USR1}
restart: {max: 3, window: 1h, backoff: 1s..1m, on: [crash, hang], never_exit_codes: [2, 93], in_place: true, standby: false, warm: false, preload: [torch, a.b], requeue: false}
elastic: {scale_up: immediately, unit: 1, checkpoint_signal: USR1}
spares: 1
priority: -2
queue: {begin: 2030-12-01T08:00, deadline: now+1day, held: true, dependencies: ["afterok:12:13", singleton], any_dependency: true, keep_if_never: true}
logs: {dir: logs, tee: [0]}
slurm: {partition: gpu, account: x, extra: ["--exclusive"]}
)";

TEST(ReaderTest, EveryKey_ArrivesInTheSpec) {
  const auto spec = ReadSpec(kWhole, "job.yaml");
  ASSERT_OK(spec);
  EXPECT_EQ(spec->name(), "mnist");
  ASSERT_EQ(spec->command_size(), 3);
  EXPECT_EQ(spec->command(2), "10");
  EXPECT_EQ(spec->nodes().min(), 2u);
  EXPECT_EQ(spec->nodes().max(), 4u);
  EXPECT_EQ(spec->workers_per_node().kind(), v1::WorkersPerNode::GPU);
  // Text stays text: YAML's own interpretation of "no" and 0x10 does not apply.
  EXPECT_EQ(spec->env().at("FLAG"), "no");
  EXPECT_EQ(spec->env().at("NUMBER"), "0x10");
  EXPECT_EQ(spec->resources().memory_per_worker(), uint64_t{8} << 30);
  EXPECT_TRUE(spec->has_agent_store() && !spec->agent_store());
  EXPECT_TRUE(spec->encrypt());
  EXPECT_EQ(spec->placement().bind(), "numa");
  EXPECT_THAT(spec->placement().nodes(), ElementsAre("n1", "n2"));
  EXPECT_THAT(spec->placement().exclude(), ElementsAre("n3"));
  EXPECT_THAT(spec->placement().labels(), ElementsAre("rack=1|rack=2", "a100"));
  EXPECT_EQ(spec->timeouts().warning().seconds(), 300);
  EXPECT_EQ(spec->timeouts().warning_signal(), SIGUSR1);
  EXPECT_TRUE(spec->restart().has_requeue() && !spec->restart().requeue());
  EXPECT_GT(spec->queue().begin_unix_ms(), int64_t{1900000000000});
  EXPECT_GT(spec->queue().deadline_unix_ms(), 0);
  EXPECT_TRUE(spec->queue().held());
  EXPECT_EQ(spec->queue().dependencies_size(), 3);
  EXPECT_TRUE(spec->queue().any_dependency());
  EXPECT_TRUE(spec->queue().keep_if_never());
  EXPECT_EQ(spec->rendezvous().join_timeout().seconds(), 600);
  EXPECT_EQ(spec->timeouts().total().seconds(), 86400);
  EXPECT_EQ(spec->restart().max(), 3u);
  EXPECT_EQ(spec->restart().backoff_max().seconds(), 60);
  EXPECT_EQ(spec->restart().on_size(), 2);
  EXPECT_EQ(spec->restart().never_exit_codes(1), 93u);
  EXPECT_TRUE(spec->restart().in_place());
  EXPECT_TRUE(spec->restart().has_standby() && !spec->restart().standby());
  EXPECT_TRUE(spec->restart().has_warm() && !spec->restart().warm());
  EXPECT_EQ(spec->restart().preload(1), "a.b");
  EXPECT_EQ(spec->elastic().scale_up(), v1::ElasticPolicy::IMMEDIATELY);
  EXPECT_EQ(spec->elastic().checkpoint_signal(), SIGUSR1);
  EXPECT_EQ(spec->priority(), -2);
  EXPECT_EQ(spec->logs().tee_size(), 1);
  EXPECT_EQ(spec->slurm().extra(0), "--exclusive");
}

// Fault (input): A job file is wrong -> It is refused with one line that has the line and column
TEST(ReaderTest, BadInput_IsOneLineWithItsPlace) {
  const struct {
    std::string text;
    std::string error;
  } kCases[] = {
      {"name: a\ncomand: [x]\n", "job.yaml:2:1: unknown key 'comand'; did you mean 'command'?"},
      {"command: [x]\nrestart:\n  maxx: 1\n",
       "job.yaml:3:3: unknown key 'maxx'; did you mean 'max'?"},
      {"command: [x]\ncommand: [y]\n", "job.yaml:2:1: key 'command' comes twice"},
      {"command: [x]\nenv: {A: 1, A: 2}\n", "job.yaml:2:13: key 'A' comes twice"},
      {"command: x\n", "job.yaml:1:10: 'command': expected a list, got text"},
      {"command: [x]\nnodes: [2]\n", "job.yaml:2:8: 'nodes': expected a single value, got a list"},
      {"command: [x]\nnodes: many\n",
       "job.yaml:2:8: 'nodes': expected a number of nodes from 1, or a range such as 2..4, got "
       "'many'"},
      {"command: [x]\nrestart: {on: [sometimes]}\n", "'on': expected crash, hang"},
      {"command: [x]\nrestart: {on: [exec_failed]}\n", "exec_failed is never tried again"},
      {"command: [x]\nelastic: {unit: 0}\n", "'unit': expected a number of nodes from 1, got '0'"},
      {"command: [x]\nrestart: {in_place: yes}\n", "expected true or false, got 'yes'"},
      {"command: [x]\nrestart: {never_exit_codes: [300]}\n", "exit code from 1 to 255"},
      {"command: [[x]]\n", "expected a list of single values"},
      {"command: [x]\ntimeouts: 3\n", "'timeouts': expected a mapping, got text"},
      {"command: [x]\nspares:\n", "'spares': expected a single value, got nothing"},
      {"command: [&a x]\n", "anchors (&name) are not allowed"},
      {"command: [x, *a]\n", "job.yaml:1:14"},
      {"command: [!!str x]\n", "tags ("},
      {"command: [x]\n---\ncommand: [y]\n", "a second document"},
      {"command: [x\n", "job.yaml:"},
      {"\"command\n", "job.yaml:"},
      {"name: a\n", "'command' is missing"},
      {"name: a\ncommand: []\n",
       "job.yaml:2:10: 'command': the list is empty; expected one such as"},
      {"command: ['']\n", "job.yaml:1:10: 'command': its first item, the program, is empty"},
      {"command: ['', x]\n", "the program, is empty"},
      {"command: [x]\nname: a\xff\n", "job.yaml:2:8: not UTF-8"},
      {"command: [caf\xc3]\n", "job.yaml:1:14: not UTF-8"},
      {"", "expected a mapping"},
      {"- a\n", "expected a mapping"},
      {"name: UPPER\ncommand: [x]\n", "small letters"},
      {"command: [x]\nenv: {\"A=B\": c}\n", "cannot be a variable's name"},
      {"command: [x]\nenv: {RANK: 0}\n", "Cadre sets 'RANK' for each worker"},
      {"command: [x]\nelastic: {checkpoint_signal: KILL}\n",
       "job.yaml:2:30: 'checkpoint_signal': expected a signal that a program can catch, such as "
       "USR1, got 'KILL'"},
      {"command: [x]\nelastic: {checkpoint_signal: SIGSTOP}\n", "can catch"},
      {"command: [\"a\\0b\"]\n", "NUL"},
      {"command: [x]\npriority: 1.5\n", "expected a number from -1000000"},
      {"command: [x]\nqueue: {begin: soon}\n",
       "job.yaml:2:16: 'begin': expected a time, as 2026-12-01T08:00"},
      {"command: [x]\nqueue: {dependencies: [afterok]}\n",
       "'dependencies': expected after:JOB[+MINUTES]"},
      {"command: [x]\nplacement: {nodes: [-n]}\n", "'nodes': expected the name of a node"},
      {"command: [x]\nplacement: {labels: [\"a&b\"]}\n", "'labels': expected a label such as"},
      {"? [a]\n: b\n", "expected a key"},
      {"command: [x]\nslurm: {account: my project}\n",
       "job.yaml:2:18: 'account': expected a name of letters"},
      {"command: [x]\nslurm:\n  extra: [touch]\n",
       "job.yaml:3:10: 'extra': expected an option of sbatch, such as --time=04:00:00, got "
       "'touch'"},
  };
  for (const auto& c : kCases) {
    const auto spec = ReadSpec(c.text, "job.yaml");
    ASSERT_FALSE(spec.ok()) << c.text;
    EXPECT_THAT(spec.status(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.error)))
        << c.text;
    EXPECT_THAT(std::string(spec.status().message()), StartsWith("job.yaml:")) << c.text;
    EXPECT_EQ(spec.status().message().find('\n'), absl::string_view::npos) << c.text;
  }
}

TEST(ReaderTest, AllThatIsWrong_IsSaidAtOnce) {
  const auto spec = ReadSpec(
      "name: UPPER\nnodes: many\nrestart:\n  maxx: 1\n  on: [sometimes]\nworkerz: 2\n", "f");
  ASSERT_FALSE(spec.ok());
  const std::vector<std::string> lines = absl::StrSplit(spec.status().message(), '\n');
  EXPECT_THAT(lines, ElementsAre(StartsWith("f:1:7: 'name'"), StartsWith("f:2:8: 'nodes'"),
                                 StartsWith("f:4:3: unknown key 'maxx'"), StartsWith("f:5:7: 'on'"),
                                 StartsWith("f:6:1: unknown key 'workerz'"),
                                 HasSubstr("'command' is missing")));
}

// Fault (input): A job file is hostile -> It is refused in bounded time and memory
TEST(ReaderTest, Limits_Hold) {
  EXPECT_THAT(ReadSpec(std::string(kMaxSpecBytes + 1, ' '), "f"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 1048576")));

  std::string many = "command: [x]\nlogs: {tee: [";
  for (size_t i = 0; i < kMaxSpecNodes; ++i) absl::StrAppend(&many, "1,");
  EXPECT_THAT(ReadSpec(many + "1]}\n", "f"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("more than 10000 values")));

  const std::string deep = "command: " + std::string(17, '[') + std::string(17, ']');
  EXPECT_THAT(ReadSpec(deep, "f"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nested more than 16 deep")));
  EXPECT_FALSE(ReadSpec("command: " + std::string(500000, '['), "f").ok());
}

TEST(ReaderTest, MissingFile_SaysSo) {
  EXPECT_THAT(ReadSpecFile("/no/such/job.yaml"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/job.yaml")));
  EXPECT_THAT(ReadSpecFile("/"), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(ReaderTest, WhatIsFoundWrongLater_HasItsPlace) {
  const std::string path = absl::StrCat(testing::TempDir(), "/later.yaml");
  std::ofstream(path) << "command: [x]\ntimeouts:\n  stop_grace: 20h\nnodes: 2\n";
  EXPECT_EQ(SpecErrorAt(path, "timeouts.stop_grace: too long").message(),
            absl::StrCat(path, ":3:15: timeouts.stop_grace: too long"));
  EXPECT_EQ(SpecErrorAt(path, "nodes: too many").message(),
            absl::StrCat(path, ":4:8: nodes: too many"));
  EXPECT_EQ(SpecErrorAt(path, "restart.max: why").message(),
            absl::StrCat(path, ": restart.max: why"));
}

TEST(ReaderTest, Defaults_LeaveWhatWasSaid) {
  v1::JobSpec spec = *ReadSpec("command: [x]\ntimeouts: {stop_grace: 0s}\n", "f");
  FillSpecDefaults(spec);
  EXPECT_EQ(spec.timeouts().stop_grace().seconds(), 0);
  EXPECT_EQ(spec.timeouts().start().seconds(), 300);
  EXPECT_EQ(spec.nodes().max(), 1u);
  EXPECT_EQ(spec.restart().max(), 0u);
  EXPECT_EQ(spec.workers_per_node().count(), 1u);
}

TEST(CheckUtf8FieldsTest, ATextAtAnyDepthIsNamed) {
  v1::JobSpec spec;
  spec.set_name("\xc3\xa9t\xc3\xa9");
  EXPECT_OK(CheckUtf8Fields(spec));
  const auto says = [](const v1::JobSpec& wrong, const std::string& what) {
    EXPECT_THAT(CheckUtf8Fields(wrong), StatusIs(absl::StatusCode::kInvalidArgument,
                                                 HasSubstr(what + " is not UTF-8 text")));
  };
  const auto names = [&](const v1::JobSpec& wrong, const std::string& field) {
    says(wrong, field + ": 'a\\xe9'");
  };
  v1::JobSpec plain = spec;
  plain.set_role("a\xe9");
  names(plain, "role");
  v1::JobSpec listed = spec;
  listed.add_command("python3");
  listed.add_command("a\xe9");
  names(listed, "command");
  v1::JobSpec deep = spec;
  deep.mutable_logs()->set_dir("a\xe9");
  names(deep, "logs.dir");
  v1::JobSpec mapped = spec;
  (*mapped.mutable_env())["A"] = "a\xe9";
  says(mapped, "env.value");
}

v1::JobSpec With(const std::vector<std::string>& assignments) {
  v1::JobSpec spec;
  for (const std::string& assignment : assignments) EXPECT_OK(SetInSpec(assignment, spec));
  return spec;
}

TEST(SetInSpecTest, AValueIsReadAsInTheFile) {
  const v1::JobSpec spec =
      With({"timeouts.progress=10m", "nodes=2..4", "restart.in_place=true", "role=a: b # c"});
  EXPECT_EQ(spec.timeouts().progress().seconds(), 600);
  EXPECT_EQ(spec.nodes().max(), 4u);
  EXPECT_TRUE(spec.restart().in_place());
  EXPECT_EQ(spec.role(), "a: b # c");
}

TEST(SetInSpecTest, TheLastOneCounts_AndAListReplacesTheFiles) {
  v1::JobSpec spec = *ReadSpec("command: [x, y]\nrestart: {on: [crash], max: 1}\n", "f");
  EXPECT_OK(SetInSpec("restart.on=[hang, preempted]", spec));
  EXPECT_OK(SetInSpec("restart.max=2", spec));
  EXPECT_OK(SetInSpec("restart.max=3", spec));
  EXPECT_OK(SetInSpec("command=[\"a b\"]", spec));
  EXPECT_THAT(spec.restart().on(), ElementsAre(v1::HANG, v1::PREEMPTED));
  EXPECT_EQ(spec.restart().max(), 3u);
  EXPECT_THAT(spec.command(), ElementsAre("a b"));
  EXPECT_OK(SetInSpec("restart.on=[]", spec));
  EXPECT_EQ(spec.restart().on_size(), 0);
}

TEST(SetInSpecTest, AVariableIsSetByItsName) {
  const v1::JobSpec spec = With({"env.A=1", "env.B=x=y", "env.A=", "env.C.D={\"e\": *}"});
  EXPECT_EQ(spec.env().at("A"), "");
  EXPECT_EQ(spec.env().at("B"), "x=y");
  EXPECT_EQ(spec.env().at("C.D"), "{\"e\": *}");
}

TEST(SetInSpecTest, BadInput_IsOneLineThatNamesThePath) {
  const struct {
    std::string assignment;
    std::string error;
  } kCases[] = {
      {"timeouts.progress", "expected PATH=VALUE, such as timeouts.progress=10m, got 'timeouts."},
      {"", "expected PATH=VALUE, such as timeouts.progress=10m, got ''"},
      {"timeouts.progres=1m",
       "unknown path 'timeouts.progres'; did you mean 'timeouts.progress'? 'timeouts' has start, "
       "progress, silence, stop_grace, total, warning, warning_signal"},
      {"timeouts.stop-grace=1m", "did you mean 'timeouts.stop_grace'?"},
      {"timeouts.=1m", "unknown path 'timeouts.'; "},
      {"progress=1m", "did you mean 'timeouts.progress'? a job has name, command, nodes, "},
      {"zzzzzzzz=1", "unknown path 'zzzzzzzz'; a job has name, command"},
      {"=1", "unknown path ''; "},
      {"a\nb=1", "unknown path 'a\\nb'; "},
      {"spares.x=1", "'spares' has no keys"},
      {"timeouts=10m",
       "'timeouts' is a section, not a single value: set one of timeouts.start, timeouts.progress"},
      {"env=1", "'env' is a section, not a single value: set env.NAME=VALUE"},
      {"env.RANK=1", "'env': Cadre sets 'RANK' for each worker; leave it out"},
      {"timeouts.progress=soon",
       "'timeouts.progress': expected a duration such as 90s, 10m, 1h30m or 500ms, got 'soon'"},
      {"restart.in_place=yes", "'restart.in_place': expected true or false, got 'yes'"},
      {"restart.max=-1", "'restart.max': expected a number, got '-1'"},
      {"restart.on=crash", "'restart.on': expected a list such as [a, b], got text"},
      {"restart.on=", "'restart.on': expected a list such as [a, b], got nothing"},
      {"restart.on=[[crash]]", "'restart.on': expected a list of single values"},
      {"restart.on=[crash", "restart.on:1:"},
      {"restart.on=[exec_failed]", "'restart.on': exec_failed is never tried again"},
      {"name=UPPER", "'name': expected a name of at most 63 small letters"},
      {"command=[]", "'command': the list is empty"},
  };
  for (const auto& c : kCases) {
    v1::JobSpec spec;
    EXPECT_THAT(SetInSpec(c.assignment, spec),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.error)))
        << c.assignment;
    EXPECT_EQ(SetInSpec(c.assignment, spec).message().find('\n'), absl::string_view::npos);
  }
}

TEST(SpecPropertiesTest, EachKeyOfTheFileHasOne) {
  std::set<std::string> paths;
  for (const SpecProperty& property : SpecProperties()) {
    EXPECT_TRUE(paths.insert(property.path).second) << property.path;
    EXPECT_FALSE(property.form.empty() || property.preset.empty() || property.help.empty());
  }
  for (const auto& [mapping, keys] : SpecKeys()) {
    for (const std::string& key : keys) {
      if (mapping.empty()) continue;
      EXPECT_EQ(paths.count(absl::StrCat(mapping, ".", key)), 1u) << key;
    }
  }
  EXPECT_EQ(paths.count("nodes"), 1u);
  EXPECT_EQ(paths.count("env.NAME"), 1u);
}

TEST(SpecPropertiesTest, Presets_AreWhatIsFilledIn) {
  v1::JobSpec defaults;
  FillSpecDefaults(defaults);
  const std::set<std::string> filled = {
      "nodes",          "workers_per_node",    "role",           "rendezvous.join_timeout",
      "timeouts.start", "timeouts.stop_grace", "placement.bind", "rendezvous.settle",
      "logs.dir",       "restart.backoff"};
  v1::JobSpec set;
  for (const SpecProperty& property : SpecProperties()) {
    if (filled.count(property.path) == 0) continue;
    EXPECT_OK(SetInSpec(absl::StrCat(property.path, "=", property.preset), set));
  }
  EXPECT_EQ(set.DebugString(), defaults.DebugString());
}

TEST(ReaderTest, Schema_HasTheReadersKeys) {
  std::ifstream file("launcher/spec/job.schema.json");
  ASSERT_TRUE(file.good());
  const nlohmann::json schema = nlohmann::json::parse(file);
  for (const auto& [mapping, keys] : SpecKeys()) {
    const nlohmann::json& place = mapping.empty() ? schema : schema["properties"][mapping];
    std::vector<std::string> in_schema;
    for (const auto& [key, unused] : place["properties"].items()) in_schema.push_back(key);
    std::vector<std::string> in_reader = keys;
    std::sort(in_reader.begin(), in_reader.end());
    EXPECT_EQ(in_schema, in_reader) << "mapping '" << mapping << "'";
    EXPECT_EQ(place["additionalProperties"], false);
  }
}

}  // namespace
}  // namespace cadre::launcher
