#include "tests/testing/launch.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace cadre {

std::unique_ptr<Process> StartProgram(const std::string& program,
                                      const std::vector<std::string>& arguments,
                                      std::map<std::string, std::string> env, bool terminal) {
  ProcessOptions options;
  options.argv = {program};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  options.env = std::move(env);
  // What programs keep between runs belongs to the test.
  options.env.emplace("XDG_CACHE_HOME", MakeTempDir("cache"));
  options.env.emplace("XDG_STATE_HOME", MakeTempDir("state"));
  options.env.emplace("CADRE_CONFIG", "none");
  options.terminal = terminal;
  auto process = Process::Start(options);
  if (!process.ok()) {
    ADD_FAILURE() << process.status();
    return nullptr;
  }
  return *std::move(process);
}

std::unique_ptr<Process> StartCadre(const std::vector<std::string>& arguments,
                                    std::map<std::string, std::string> env, bool terminal) {
  return StartProgram(kCadre, arguments, std::move(env), terminal);
}

std::unique_ptr<Process> StartStandalone(const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {"run", "--standalone"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return StartCadre(all);
}

std::unique_ptr<Process> StartNode(int port, const std::string& nnodes, int node,
                                   const std::vector<std::string>& arguments,
                                   std::map<std::string, std::string> env) {
  std::vector<std::string> all = {"run",
                                  "--nnodes",
                                  nnodes,
                                  "--rdzv-endpoint",
                                  absl::StrCat("127.0.0.1:", port),
                                  "--node-name",
                                  absl::StrCat("node", node)};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return StartCadre(all, std::move(env));
}

size_t FirstThatDoesNotServe(const std::vector<std::unique_ptr<Process>>& nodes) {
  size_t node = 0;
  while (absl::StrContains(OutputOf(*nodes[node]), "serving the rendezvous")) ++node;
  return node;
}

ProbeLine ParseProbe(const std::string& line) {
  std::map<std::string, int64_t> fields;
  for (absl::string_view word : absl::StrSplit(line, ' ')) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(word, absl::MaxSplits('=', 1));
    int64_t value = 0;
    if (absl::SimpleAtoi(pair.second, &value)) fields[pair.first] = value;
  }
  ProbeLine probe;
  probe.rank = static_cast<int>(fields["rank"]);
  probe.local = static_cast<int>(fields["local"]);
  probe.world = static_cast<int>(fields["world"]);
  probe.node = static_cast<int>(fields["node"]);
  probe.generation = static_cast<int>(fields["generation"]);
  probe.restarts = static_cast<int>(fields["restarts"]);
  probe.pid = static_cast<pid_t>(fields["pid"]);
  probe.at_ns = fields["at_ns"];
  return probe;
}

std::vector<ProbeLine> NextProbes(Process& process, size_t count, absl::Duration timeout) {
  std::vector<ProbeLine> probes;
  for (const std::string& line : process.WaitForLines("probe rank=", count, timeout)) {
    probes.push_back(ParseProbe(line));
  }
  return probes;
}

bool Eventually(const std::function<bool()>& holds, absl::Duration timeout) {
  const absl::Time end = absl::Now() + timeout;
  while (!holds()) {
    if (absl::Now() > end) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

}  // namespace cadre
