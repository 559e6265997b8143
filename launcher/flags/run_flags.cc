#include "launcher/flags/run_flags.h"

#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "launcher/spec/job_spec.h"

namespace cadre::launcher {
namespace {

constexpr char kSize[] = "Size of the job";
constexpr char kWhere[] = "Rendezvous";
constexpr char kProgram[] = "Program";
constexpr char kOutput[] = "Output";
constexpr char kFailure[] = "Failures and limits";
constexpr char kPlacement[] = "Placement";
constexpr char kOld[] = "Written with --set since 0.4";
constexpr char kAccepted[] = "Accepted for torchrun's sake, without effect";

Flag Torchrun(const char* group, const char* name, const char* value, const char* help,
              char short_name = '\0') {
  return Flag{name, value, help, group, short_name, false, true};
}

Flag Own(const char* group, const char* name, const char* value, const char* help) {
  return Flag{name, value, help, group, '\0', false, false};
}

std::vector<Flag> SizeFlags() {
  Flag set = Own(kSize, "set", "PATH=VALUE",
                 "Any property of a job, as in the file: timeouts.progress=10m.");
  set.repeated = true;
  return {
      Torchrun(kSize, "nnodes", "N|MIN:MAX", "Nodes that take part [1]."),
      Torchrun(kSize, "nproc-per-node", "N|gpu|cpu|auto", "Workers each node starts [1]."),
      Torchrun(kSize, "standalone", "", "This node alone; no rendezvous."),
      Own(kSize, "spec", "FILE", "Read the job from a YAML file; flags and --set win over it."),
      set,
      Own(kSize, "job-name", "NAME", "Name of the job [the program's name]."),
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
          "Run on every host of FILE (lines such as 'node1 slots=4'), over ssh."),
      Own(kWhere, "ssh-command", "COMMAND",
          "Starts the launchers on the hosts of --hostfile [ssh -o BatchMode=yes]."),
      Own(kWhere, "node-name", "NAME", "Name of this node, unique in the job [host name]."),
      Own(kWhere, "bind-host", "ADDRESS", "Where to listen when serving [the endpoint's address]."),
      Own(kWhere, "token-file", "FILE",
          "The job's token ('cadre token new'), needed off loopback; '-': stdin."),
      Own(kWhere, "tls-dir", "DIR", "Mutual TLS with ca.pem, cert.pem and key.pem in DIR."),
      Own(kWhere, "insecure", "", "Clear text, also off loopback."),
      Own(kWhere, "state-dir", "DIR",
          "When serving: keep the state in DIR; it outlives this process."),
      Own(kWhere, "http", "HOST[:PORT]",
          "When serving: dashboard and metrics there [nowhere; port 29480]."),
      Own(kWhere, "etcd", "URL[,...]",
          "When serving: share the state with the servers at the other endpoints, in this etcd."),
      Own(kWhere, "etcd-prefix", "PREFIX", "Prefix of the keys in etcd [/cadre/run/JOB/]."),
      Own(kWhere, "etcd-tls-dir", "DIR", "Mutual TLS with etcd: ca.pem, cert.pem, key.pem."),
      Own(kWhere, "orphan-timeout", "TIME", "Keep workers this long without the server [60s]."),
      Own(kWhere, "adopt-timeout", "TIME",
          "If this launcher dies: keep workers this long for the next one [0s]."),
      Own(kWhere, "strict-fencing", "",
          "Kill workers before the lease (10s) ends if no server answers."),
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
      Own(kProgram, "encrypt", "",
          "Workers encrypt what they send to other nodes over Cadre's sockets."),
      Torchrun(kProgram, "print-completion", "SHELL",
               "Print what 'cadre completion SHELL' does, and end."),
      Torchrun(kProgram, "virtual-local-rank", "",
               "LOCAL_RANK is 0, and a worker sees its own GPU only."),
  };
}

std::vector<Flag> OutputFlags() {
  return {
      Torchrun(kOutput, "log-dir", "DIR", "Root of the log files [logs]."),
      Torchrun(kOutput, "redirects", "WHAT",
               "Output only to files: 1 out, 2 err, 3 both, or by local rank 0:1,1:3.", 'r'),
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
      Own(kFailure, "in-place", "",
          "Workers that can rejoin keep their process when others are replaced."),
      Torchrun(kFailure, "signals-to-handle", "LIST",
               "Signals at which the job ends in order [SIGTERM,SIGINT,SIGHUP,SIGQUIT]; others do "
               "what they do to any program, but for SIGUSR1: a scheduler's warning, at which it "
               "ends with 75, to go on later."),
      Torchrun(
          kFailure, "shutdown-timeout", "SECONDS",
          "torchrun's word for --set timeouts.stop_grace; so is TORCH_ELASTIC_SHUTDOWN_TIMEOUT."),
  };
}

std::vector<Flag> PlacementFlags() {
  return {
      Torchrun(kPlacement, "numa-binding", "WHAT",
               "torchrun's word: the same as --set placement.bind=numa."),
      Own(kPlacement, "gpus-per-worker", "all|own", "Which GPUs a worker sees [all]."),
  };
}

// How the value of an old flag is written with --set.
enum class Form { kSame, kList, kYesNo, kFalse };

struct OldFlag {
  const char* name;
  // As in Flag.
  const char* value;
  const char* property;
  Form form = Form::kSame;
};

constexpr OldFlag kOldFlags[] = {
    {"spares", "N", "spares"},
    {"scale-up", "WHEN", "elastic.scale_up"},
    {"checkpoint-signal", "NAME", "elastic.checkpoint_signal"},
    {"join-timeout", "TIME", "rendezvous.join_timeout"},
    {"settle", "TIME", "rendezvous.settle"},
    {"no-agent-store", "", "agent_store", Form::kFalse},
    {"working-dir", "DIR", "working_dir"},
    {"restart-window", "TIME", "restart.window"},
    {"backoff", "MIN..MAX", "restart.backoff"},
    {"restart-on", "LIST", "restart.on", Form::kList},
    {"standby", "yes|no", "restart.standby", Form::kYesNo},
    {"no-warm", "", "restart.warm", Form::kFalse},
    {"preload", "LIST", "restart.preload", Form::kList},
    {"never-exit-codes", "LIST", "restart.never_exit_codes", Form::kList},
    {"start-timeout", "TIME", "timeouts.start"},
    {"progress-timeout", "TIME", "timeouts.progress"},
    {"silence-timeout", "TIME", "timeouts.silence"},
    {"stop-grace", "TIME", "timeouts.stop_grace"},
    {"total-timeout", "TIME", "timeouts.total"},
    {"bind", "none|core|numa|gpu", "placement.bind"},
};

std::string SetText(const OldFlag& flag, const std::string& value) {
  std::string text = value;
  if (flag.form == Form::kFalse) text = "false";
  if (flag.form == Form::kList) {
    text = absl::StrCat("[", absl::StrReplaceAll(value, {{", ", ", "}, {",", ", "}}), "]");
  }
  if (flag.form == Form::kYesNo) {
    const std::string word = absl::AsciiStrToLower(value);
    text = word == "1" || word == "true" || word == "yes" ? "true" : "false";
  }
  return absl::StrCat(flag.property, "=", text);
}

std::vector<Flag> OldFlags() {
  std::vector<Flag> flags;
  for (const OldFlag& old : kOldFlags) {
    const bool same = old.form == Form::kSame;
    const char* const form = old.form == Form::kList ? "LIST" : "true|false";
    const std::string now = old.form == Form::kFalse
                                ? SetText(old, "")
                                : absl::StrCat(old.property, "=", same ? old.value : form);
    Flag flag = Own(kOld, old.name, old.value, "");
    flag.help =
        absl::StrCat("Now --set ", now, "; this form will be refused from ", kOldFlagsEnd, ".");
    flag.property = old.property;
    flag.old = true;
    flags.push_back(flag);
  }
  return flags;
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
                              FailureFlags(), PlacementFlags(), OldFlags(), AcceptedFlags()}) {
      all->insert(all->end(), group.begin(), group.end());
    }
    const std::set<std::string> own = {"spec",          "set",
                                       "job-name",      "env",
                                       "hostfile",      "token-file",
                                       "tls-dir",       "insecure",
                                       "state-dir",     "http",
                                       "in-place",      "encrypt",
                                       "adopt-timeout", "strict-fencing",
                                       "output"};
    const std::set<std::string> rarely = {"print-completion", "logs-specs"};
    const std::map<std::string, std::string> properties = {
        {"nnodes", "nodes"},
        {"nproc-per-node", "workers_per_node"},
        {"job-name", "name"},
        {"max-restarts", "restart.max"},
        {"role", "role"},
        {"log-dir", "logs.dir"},
        {"encrypt", "encrypt"},
        {"in-place", "restart.in_place"},
        {"env", "env"},
        {"shutdown-timeout", "timeouts.stop_grace"},
        {"numa-binding", "placement.bind"}};
    for (Flag& flag : *all) {
      const bool of_torchrun =
          flag.torchrun && flag.group != kAccepted && rarely.count(flag.name) == 0;
      flag.everyday = of_torchrun || own.count(flag.name) > 0;
      const auto property = properties.find(flag.name);
      if (property != properties.end()) flag.property = property->second;
    }
    return all;
  }();
  return *flags;
}

std::vector<Flag> RunProperties() {
  std::vector<Flag> all;
  for (const SpecProperty& property : SpecProperties()) {
    all.push_back(
        {property.path, property.form,
         absl::StrCat(absl::StripSuffix(property.help, "."), " [", property.preset, "].")});
  }
  return all;
}

std::string AsSet(const std::string& flag, const std::string& value) {
  const OldFlag* found = nullptr;
  for (const OldFlag& old : kOldFlags) {
    if (flag == old.name) found = &old;
  }
  CADRE_CHECK(found != nullptr);
  return SetText(*found, value);
}

}  // namespace cadre::launcher
