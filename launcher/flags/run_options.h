// The task of one `cadre run`, from flags, variables, environment and spec together. Pure.
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

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/workers/output_options.h"
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
  // The program, where it is a Python script; empty: it is none.
  std::string script;
  // Nobody has said where logs are to be.
  bool logs_anywhere = false;
  // Where a server may be, in the order in which they are tried. None: this node alone, without any
  // server.
  std::vector<Endpoint> endpoints;
  // Whether this node serves there. Without it, whoever owns the endpoint's address does.
  std::optional<bool> serves;
  // As Identity has it.
  bool endpoint_comes_later = false;
  // The node that serves tells the others of its launch where (LaunchBoard); the endpoint is where
  // it tries first.
  bool by_board = false;
  // Names the token that the launchers of one launch share (Identity); empty: they share none.
  std::string launch;
  int node_rank = -1;
  // Empty: the host's name.
  std::string node_name;
  std::vector<std::string> expected_nodes;
  // As Identity has them.
  bool names_are_slurms = false;
  std::string slurm_aliases;
  // Of a cluster's job; 0: of none.
  uint64_t part = 0;
  std::string local_addr;
  std::string bind_host;
  std::string master_addr;
  uint32_t master_port = 0;
  std::string token_file;
  std::string tls_dir;
  bool insecure = false;
  // Where a server of ours keeps its state; empty: nowhere.
  std::string state_dir;
  // HOST[:PORT] of a server of ours' dashboard; empty: none.
  std::string http;
  absl::Duration orphan_timeout = absl::Seconds(60);
  bool strict_fencing = false;
  // 0: workers end with the launcher.
  absl::Duration adopt_timeout;

  agent::WorkerOptions workers;
  StreamChoice redirects;
  StreamChoice tee;
  // All of it but the streams of each local rank, which `redirects` and `tee` say.
  agent::OutputOptions output;
  // At these the job ends in order.
  std::set<int> signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  bool json = false;
  bool no_progress = false;
  bool timeline = false;
  // Lines to say once: flags that are accepted and change nothing.
  std::vector<std::string> notices;
};

// Whether a program, as it is named in that directory, is one for Python though its name does not
// end in .py.
using IsForPythonThere =
    std::function<bool(const std::string& program, const std::string& working_dir)>;

// `spec` is what --spec named, or nothing. INVALID_ARGUMENT: one line that names the flag or
// variable and what was expected.
absl::StatusOr<RunOptions> ResolveRun(const Settings& settings, std::optional<v1::JobSpec> spec,
                                      const std::optional<Identity>& identity,
                                      const IsForPythonThere& is_for_python = nullptr);

// The command with the interpreter in front where it is due (launcher/environment/python.h): the
// program is `for_python`, or its name or a flag says so. `job`: what is known of it so far; its
// own variables count before those of this command.
absl::StatusOr<std::vector<std::string>> BuildCommand(const Settings& settings,
                                                      const v1::JobSpec& job,
                                                      std::vector<std::string> program,
                                                      bool for_python = false);

// A job's name made of any text: other characters than [a-z0-9-] become dashes.
std::string JobNameFrom(absl::string_view text);
// The name of a job that is given none: "work/train_gpt.py" is train-gpt.
std::string JobNameOfProgram(absl::string_view program);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_FLAGS_RUN_OPTIONS_H_
