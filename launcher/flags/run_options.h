// The options of one `cadre run`, from flags, variables, environment and spec together. Pure.
#ifndef CADRE_LAUNCHER_FLAGS_RUN_OPTIONS_H_
#define CADRE_LAUNCHER_FLAGS_RUN_OPTIONS_H_

#include <signal.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "agent/workers/worker_options.h"
#include "launcher/environment/endpoint.h"
#include "launcher/environment/identity.h"
#include "launcher/flags/settings.h"
#include "proto/spec.pb.h"

namespace cadre::launcher {

// torchrun's -r and -t: bit 1 standard output, bit 2 standard error, for all or by local rank.
struct StreamChoice {
  uint32_t all = 0;
  std::map<uint32_t, uint32_t> by_local_rank;
  uint32_t Of(uint32_t local_rank) const {
    const auto it = by_local_rank.find(local_rank);
    return it == by_local_rank.end() ? all : it->second;
  }
};

struct RunOptions {
  // Complete: defaults are filled in.
  v1::JobSpec job;
  // The program if it is a Python script; otherwise empty.
  std::string script;
  // The user has not chosen a log directory.
  bool logs_anywhere = false;
  // Possible addresses of the server, in the order in which they are tried. Empty: this node runs
  // alone, without a server.
  std::vector<Endpoint> endpoints;
  // Whether this node serves there. If it is not set, the node that owns the endpoint's address
  // does.
  std::optional<bool> serves;
  // As in Identity.
  bool endpoint_comes_later = false;
  // The node that serves publishes its address for the launch's other nodes (LaunchBoard); the
  // endpoint is the address that it tries first.
  bool by_board = false;
  // Names the token that the launchers of one launch share (Identity); empty: they share none.
  std::string launch;
  int node_rank = -1;
  // Empty: the host name is used.
  std::string node_name;
  std::vector<std::string> expected_nodes;
  // As in Identity.
  bool names_are_slurms = false;
  std::string slurm_aliases;
  // The allocation of a cluster's job; 0: the launcher belongs to none.
  uint64_t allocation = 0;
  std::string local_addr;
  std::string bind_host;
  std::string master_addr;
  uint32_t master_port = 0;
  std::string token_file;
  std::string tls_dir;
  bool insecure = false;
  // The state directory of this launcher's own server; empty: it keeps no state.
  std::string state_dir;
  // HOST[:PORT] of the dashboard of this launcher's own server; empty: none.
  std::string http;
  absl::Duration orphan_timeout = absl::Seconds(60);
  bool strict_fencing = false;
  // 0: workers end with the launcher.
  absl::Duration adopt_timeout;

  agent::WorkerOptions workers;
  StreamChoice redirects;
  StreamChoice tee;
  // The complete options except the streams of each local rank, which `redirects` and `tee` hold.
  agent::OutputOptions output;
  // The signals at which the job is ended in order.
  std::set<int> signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  bool json = false;
  bool no_progress = false;
  bool timeline = false;
  // Lines to print once: flags that are accepted and have no effect, and old ones.
  std::vector<std::string> notices;
};

// Whether a program, named relative to that directory, is a Python program although its name does
// not end in .py.
using IsForPythonThere =
    std::function<bool(const std::string& program, const std::string& working_dir)>;

// `spec` is the content of --spec, or nullopt. A property's value is from the first of: --set or
// its flag on the command line (of which both may be there only if they agree), variables, the
// spec. INVALID_ARGUMENT: one line that names the flag or variable and what was expected.
absl::StatusOr<RunOptions> ResolveRun(const Settings& settings, std::optional<v1::JobSpec> spec,
                                      const std::optional<Identity>& identity,
                                      const IsForPythonThere& is_for_python = nullptr);

// The command, with an interpreter in front if needed (launcher/environment/program.h): if the
// program is `for_python`, or its name or a flag requires it. `job`: what is known of the job so
// far; its variables override those of this command.
absl::StatusOr<std::vector<std::string>> BuildCommand(const Settings& settings,
                                                      const v1::JobSpec& job,
                                                      std::vector<std::string> program,
                                                      bool for_python = false);

// Applies every --set, in order. INVALID_ARGUMENT names --set and the path.
absl::Status ApplySets(const Settings& settings, v1::JobSpec& job);
// Whether some --set, or one of the command line, gives that property: "nodes".
bool SetsProperty(const Settings& settings, absl::string_view path, bool command_line_only = false);

// Says what to write in place of the old flags on the command line; empty: there are none.
std::string OldFlagsNotice(const Settings& settings);

// Makes a job's name from any text: characters outside [a-z0-9-] become dashes.
std::string JobNameFrom(absl::string_view text);
// The default name of a job, made from its program: "work/train_gpt.py" gives train-gpt.
std::string JobNameOfProgram(absl::string_view program);

// Parses torchrun's lists of strings: "a,b", in which ",," is a literal comma.
std::vector<std::string> ParseTexts(absl::string_view text);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_FLAGS_RUN_OPTIONS_H_
