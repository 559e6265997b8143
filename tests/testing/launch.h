// Starts real `cadre run` launchers, as a user would, and reads the output of their workers.
#ifndef CADRE_TESTS_TESTING_LAUNCH_H_
#define CADRE_TESTS_TESTING_LAUNCH_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/testing/process.h"

namespace cadre {

// The programs under test, in the runfiles.
inline constexpr char kCadre[] = "launcher/cadre";
inline constexpr char kProbe[] = "tests/testing/probe";

// `<program> <arguments>`; the environment is that of the test, without other launchers' variables.
std::unique_ptr<Process> StartProgram(const std::string& program,
                                      const std::vector<std::string>& arguments,
                                      std::map<std::string, std::string> env = {},
                                      bool terminal = false);
// Likewise `cadre <arguments>`.
std::unique_ptr<Process> StartCadre(const std::vector<std::string>& arguments,
                                    std::map<std::string, std::string> env = {},
                                    bool terminal = false);

// `cadre run --standalone <arguments>`.
std::unique_ptr<Process> StartStandalone(const std::vector<std::string>& arguments);

// `cadre run` as one node of several: --nnodes, --rdzv-endpoint on loopback, --node-name.
std::unique_ptr<Process> StartNode(int port, const std::string& nnodes, int node,
                                   const std::vector<std::string>& arguments,
                                   std::map<std::string, std::string> env = {});

// Nodes of one job may elect the first that comes to run the server. Returns a node that does not
// run it.
size_t FirstThatDoesNotServe(const std::vector<std::unique_ptr<Process>>& nodes);

// One line of the probe worker.
struct ProbeLine {
  int rank = -1;
  int local = -1;
  int world = -1;
  int node = -1;
  int generation = -1;
  int restarts = -1;
  pid_t pid = -1;
  int64_t at_ns = 0;
};
ProbeLine ParseProbe(const std::string& line);

// Returns the next `count` probe lines of a launcher; fewer if they did not come in time.
std::vector<ProbeLine> NextProbes(Process& process, size_t count,
                                  absl::Duration timeout = absl::Seconds(20));

// Polls until the condition holds. Returns false if it does not hold within `timeout`. For
// conditions whose change causes no event.
bool Eventually(const std::function<bool()>& holds, absl::Duration timeout = absl::Seconds(60));

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_LAUNCH_H_
