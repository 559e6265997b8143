#include "launcher/flags/run_flags.h"

#include <set>
#include <string>

namespace cadre::launcher {
namespace {

constexpr char kSize[] = "Size of the job";
constexpr char kWhere[] = "Rendezvous";
constexpr char kProgram[] = "Program";
constexpr char kOutput[] = "Output";
constexpr char kFailure[] = "Failures and limits";
constexpr char kPlacement[] = "Placement";
constexpr char kAccepted[] = "Accepted for torchrun's sake, without effect";

Flag Torchrun(const char* group, const char* name, const char* value, const char* help,
              char short_name = '\0') {
  return Flag{name, value, help, group, short_name, false, true};
}

Flag Own(const char* group, const char* name, const char* value, const char* help) {
  return Flag{name, value, help, group, '\0', false, false};
}

std::vector<Flag> SizeFlags() {
  return {
      Torchrun(kSize, "nnodes", "N|MIN:MAX", "Nodes that take part [1]."),
      Torchrun(kSize, "nproc-per-node", "N|gpu|cpu|auto", "Workers each node starts [1]."),
      Torchrun(kSize, "standalone", "", "This node alone; no rendezvous."),
      Own(kSize, "spec", "FILE", "Read the job from a YAML file; flags win over it."),
      Own(kSize, "job-name", "NAME", "Name of the job [the program's name]."),
      Own(kSize, "spares", "N",
          "Nodes in reserve that a launch (srun, a host file) may have beyond --nnodes [0]."),
      Own(kSize, "scale-up", "WHEN",
          "When a node that joins later comes in: immediately, at_checkpoint, never."),
      Own(kSize, "checkpoint-signal", "NAME",
          "With at_checkpoint: sent to the workers when a node waits, such as USR1 [none]."),
  };
}

std::vector<Flag> RendezvousFlags() {
  return {
      Torchrun(kWhere, "rdzv-endpoint", "HOST[:PORT][,...]",
               "Where nodes meet; the machine that owns HOST serves it [port 29400]. Several are "
               "tried in turn; one of them leads."),
      Torchrun(kWhere, "rdzv-backend", "NAME",
               "c10d, static, etcd or cadre: all meet at the endpoint."),
      Torchrun(kWhere, "rdzv-id", "ID", "torchrun's word for --job-name."),
      Torchrun(kWhere, "rdzv-conf", "K=V,...", "join_timeout, last_call_timeout in seconds."),
      Torchrun(kWhere, "node-rank", "N",
               "The rank that this node asks for; the first to ask for one gets it."),
      Torchrun(kWhere, "master-addr", "HOST", "Rank 0's host; the endpoint where none is given."),
      Torchrun(kWhere, "master-port", "PORT", "Likewise its port [29500]."),
      Torchrun(kWhere, "local-addr", "ADDRESS", "Address under which others reach this node."),
      Own(kWhere, "hostfile", "FILE",
          "Run on every host of FILE (lines such as 'node1 slots=4'), started over ssh, or here."),
      Own(kWhere, "ssh-command", "COMMAND", "What starts them [ssh -o BatchMode=yes]."),
      Own(kWhere, "node-name", "NAME", "Name of this node, unique in the job [host name]."),
      Own(kWhere, "bind-host", "ADDRESS", "Where to listen when serving [the endpoint's address]."),
      Own(kWhere, "token-file", "FILE",
          "The job's token, needed off loopback; make one with 'cadre token new FILE'. '-': a "
          "line of standard input, whose end then ends the job."),
      Own(kWhere, "tls-dir", "DIR", "Mutual TLS with ca.pem, cert.pem and key.pem in DIR."),
      Own(kWhere, "insecure", "", "Clear text, also off loopback."),
      Own(kWhere, "state-dir", "DIR",
          "When serving: keep the state in DIR, so that it outlives this process [nowhere]."),
      Own(kWhere, "http", "HOST[:PORT]",
          "When serving: dashboard and metrics there [nowhere; port 29480]."),
      Own(kWhere, "etcd", "URL[,...]",
          "When serving: share the state with the servers at the other endpoints, in this etcd."),
      Own(kWhere, "etcd-prefix", "PREFIX", "What its keys begin with [/cadre/run/JOB/]."),
      Own(kWhere, "etcd-tls-dir", "DIR", "Mutual TLS with etcd: ca.pem, cert.pem, key.pem."),
      Own(kWhere, "join-timeout", "TIME", "How long to wait for the nodes [10m]."),
      Own(kWhere, "settle", "TIME", "With MIN:MAX: how long to wait for one more node [3s]."),
      Own(kWhere, "orphan-timeout", "TIME", "Keep workers this long without the server [60s]."),
      Own(kWhere, "adopt-timeout", "TIME",
          "If this launcher dies: keep workers this long for one that is started again [0s]."),
      Own(kWhere, "strict-fencing", "",
          "Kill workers before the lease (10s) ends when the server does not answer."),
  };
}

std::vector<Flag> ProgramFlags() {
  Flag environment = Own(kProgram, "env", "NAME=VALUE",
                         "Add to the workers' environment; NAME alone: as it is here.");
  environment.repeated = true;
  return {
      Torchrun(kProgram, "module", "", "The program is a Python module.", 'm'),
      Torchrun(kProgram, "no-python", "", "Never put python3 in front of the program."),
      Torchrun(kProgram, "run-path", "", "Run the script with runpy.run_path."),
      Torchrun(kProgram, "role", "NAME", "ROLE_NAME of the workers [default]."),
      environment,
      Own(kProgram, "env-style", "LIST", "Also set variables as 'slurm' and 'mpi' launchers do."),
      Own(kProgram, "no-agent-store", "",
          "Rank 0 serves PyTorch's store. Else its node's agent does where PyTorch is 2.1 or "
          "newer, "
          "and nothing ends with rank 0."),
      Own(kProgram, "encrypt", "",
          "Workers encrypt what they send to other nodes over Cadre's sockets."),
      Own(kProgram, "working-dir", "DIR", "Where workers start [here]."),
      Torchrun(kProgram, "print-completion", "SHELL",
               "Print what 'cadre completion SHELL' does, and end."),
      Torchrun(kProgram, "virtual-local-rank", "", "LOCAL_RANK is 0 and only the own GPU shows."),
  };
}

std::vector<Flag> OutputFlags() {
  return {
      Torchrun(kOutput, "log-dir", "DIR", "Root of the log files [logs]."),
      Torchrun(kOutput, "redirects", "WHAT",
               "Only to files: 1 out, 2 err, 3 both, or by local rank 0:1,1:3.", 'r'),
      Torchrun(kOutput, "tee", "WHAT", "To files and the terminal, likewise.", 't'),
      Torchrun(kOutput, "log-line-prefix-template", "TEXT",
               "Begins each line shown; ${hostname}, ${rank}, ${local_rank}, ${role_name} "
               "['[${hostname}:${rank}] ']."),
      Torchrun(kOutput, "duplicate-stdout-filters", "LIST",
               "Lines shown with one of these texts go to filtered_stdout.log too; ',,' is a "
               "comma."),
      Torchrun(kOutput, "duplicate-stderr-filters", "LIST", "Likewise to filtered_stderr.log."),
      Torchrun(kOutput, "logs-specs", "default",
               "Logs have one layout; torchrun's plug-ins are classes of its own process."),
      Torchrun(kOutput, "local-ranks-filter", "LIST", "Local ranks shown on the terminal."),
      Own(kOutput, "output", "plain|json", "Form of the verdict [plain]."),
      Own(kOutput, "no-progress", "", "No live status block."),
      Own(kOutput, "timeline", "", "Say at the end where the time went."),
  };
}

std::vector<Flag> FailureFlags() {
  return {
      Torchrun(kFailure, "max-restarts", "N", "Restarts allowed, counted for the whole job [0]."),
      Own(kFailure, "restart-window", "TIME", "Only restarts within this time count [all]."),
      Own(kFailure, "backoff", "MIN..MAX", "Wait before the second and later restarts [1s..1m]."),
      Own(kFailure, "restart-on", "LIST",
          "Causes tried again: crash, hang, out_of_memory, node_lost, preempted, start_timeout "
          "[these]; exec_failed and load_failed never are."),
      Own(kFailure, "in-place", "",
          "Workers that can rejoin go on in their process when others are replaced."),
      Own(kFailure, "standby", "yes|no",
          "Keep processes of a program with the worker runtime started for workers that are lost "
          "[yes with --in-place, else no]."),
      Own(kFailure, "no-warm", "",
          "Restart workers of a Python program plainly, not from a process that has imported its "
          "packages."),
      Own(kFailure, "preload", "LIST",
          "Modules that such a process imports besides those that the program was seen to import."),
      Own(kFailure, "never-exit-codes", "LIST", "Exit codes never tried again [93]."),
      Own(kFailure, "start-timeout", "TIME", "From assignment to all workers running [5m]."),
      Own(kFailure, "progress-timeout", "TIME",
          "A worker that has shown progress once, then none for this long, hangs [never]."),
      Own(kFailure, "silence-timeout", "TIME",
          "A worker that writes no output and shows no progress for this long hangs [never]."),
      Own(kFailure, "stop-grace", "TIME", "Between SIGTERM and SIGKILL [30s]."),
      Own(kFailure, "total-timeout", "TIME", "Limit for the whole job [none]."),
      Torchrun(kFailure, "signals-to-handle", "LIST",
               "Signals at which the job ends in order [SIGTERM,SIGINT,SIGHUP,SIGQUIT]; others do "
               "what they do to any program, but for SIGUSR1: a scheduler's warning, at which it "
               "ends with 75, to go on later."),
      Torchrun(kFailure, "shutdown-timeout", "SECONDS",
               "torchrun's word for --stop-grace; so is TORCH_ELASTIC_SHUTDOWN_TIMEOUT."),
  };
}

std::vector<Flag> PlacementFlags() {
  return {
      Own(kPlacement, "bind", "none|core|numa|gpu", "What each worker is bound to [none]."),
      Torchrun(kPlacement, "numa-binding", "WHAT", "torchrun's word: the same as --bind numa."),
      Own(kPlacement, "gpus-per-worker", "all|own", "Which GPUs a worker sees [all]."),
  };
}

std::vector<Flag> AcceptedFlags() {
  std::vector<Flag> flags;
  for (const auto& [name, why] : FlagsWithoutMeaning()) {
    flags.push_back(Flag{name, "VALUE", why, kAccepted, '\0', false, true});
  }
  return flags;
}

}  // namespace

const std::map<std::string, std::string>& FlagsWithoutMeaning() {
  static const auto* const flags = new std::map<std::string, std::string>{
      {"monitor-interval", "Exits are noticed at once."},
      {"start-method", "Workers are always started by exec."},
      {"event-log-handler", "The timeline is written beside the logs."},
  };
  return *flags;
}

const std::vector<Flag>& RunFlags() {
  static const std::vector<Flag>* const flags = [] {
    auto* all = new std::vector<Flag>;
    for (const auto& group : {SizeFlags(), RendezvousFlags(), ProgramFlags(), OutputFlags(),
                              FailureFlags(), PlacementFlags(), AcceptedFlags()}) {
      all->insert(all->end(), group.begin(), group.end());
    }
    const std::set<std::string> everyday = {
        "nnodes",       "nproc-per-node",   "standalone", "spec", "job-name", "rdzv-endpoint",
        "hostfile",     "token-file",       "module",     "env",  "log-dir",  "tee",
        "max-restarts", "progress-timeout", "stop-grace"};
    for (Flag& flag : *all) flag.everyday = everyday.count(flag.name) > 0;
    return all;
  }();
  return *flags;
}

}  // namespace cadre::launcher
