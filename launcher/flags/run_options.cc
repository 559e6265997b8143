// Evaluates the flags of `cadre run`: the job, the rendezvous, and this node's own options.
#include "launcher/flags/run_options.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/duration.h"
#include "base/keyed_digest.h"
#include "base/status_macros.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "launcher/environment/endpoint.h"
#include "launcher/environment/program.h"
#include "launcher/flags/flag_values.h"
#include "launcher/flags/run_flags.h"
#include "launcher/spec/job_spec.h"
#include "launcher/spec/scalars.h"

namespace cadre::launcher {
namespace {

constexpr size_t kMaxNameBytes = 63;

// torchrun accepts any text as an id, and two texts are two jobs. If the allowed characters cannot
// distinguish them, a digest does, the same on every node.
std::string JobNameFromId(absl::string_view id) {
  constexpr size_t kDigits = 8;
  std::string name = JobNameFrom(id);
  if (name == id) return name;
  const std::string digest = absl::BytesToHexString(KeyedDigest("cadre rdzv-id", id));
  name.resize(std::min(name.size(), kMaxNameBytes - 1 - kDigits));
  return absl::StrCat(name, "-", digest.substr(0, kDigits));
}

absl::Status ChooseName(const Settings& settings, const std::optional<Identity>& identity,
                        const std::vector<std::string>& program, RunOptions& options) {
  v1::JobSpec& job = options.job;
  // Those have named it.
  if (settings.Get("job-name").has_value() || SetsProperty(settings, "name")) {
    return absl::OkStatus();
  }
  const std::string id = settings.GetOr("rdzv-id", "");
  if (!id.empty() && id != "none") {
    job.set_name(JobNameFromId(id));
    options.workers.run_id = id;
  } else if (job.name().empty() && identity.has_value() && !identity->job_name.empty()) {
    job.set_name(JobNameFrom(identity->job_name));
  } else if (job.name().empty()) {
    job.set_name(JobNameOfProgram(program.empty() ? "job" : program[0]));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ParseJobName(const std::string& text) {
  RETURN_IF_ERROR(CheckJobName(text));
  return text;
}

absl::Status TakeSize(const Settings& settings, v1::JobSpec& job) {
  RETURN_IF_ERROR(
      Take(settings, "job-name", ParseJobName, [&](std::string name) { job.set_name(name); }));
  RETURN_IF_ERROR(Take(settings, "nnodes", ParseNodeRange,
                       [&](v1::NodeRange range) { *job.mutable_nodes() = range; }));
  RETURN_IF_ERROR(Take(settings, "nproc-per-node", ParseWorkersPerNode,
                       [&](v1::WorkersPerNode w) { *job.mutable_workers_per_node() = w; }));
  RETURN_IF_ERROR(Take(settings, "spares", ParseCount, [&](uint32_t n) { job.set_spares(n); }));
  RETURN_IF_ERROR(Take(settings, "checkpoint-signal", ParseSignal,
                       [&](int s) { job.mutable_elastic()->set_checkpoint_signal(s); }));
  return Take(settings, "scale-up", ParseScaleUp,
              [&](v1::ElasticPolicy::ScaleUp s) { job.mutable_elastic()->set_scale_up(s); });
}

// torchrun's alternatives to --stop-grace, if that is not given: its flag, or its variable.
std::optional<Setting> Shutdown(const Settings& settings) {
  constexpr char kVariable[] = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
  if (settings.Get("stop-grace").has_value()) return std::nullopt;
  if (std::optional<Setting> flag = settings.Get("shutdown-timeout")) return flag;
  if (SetsProperty(settings, "timeouts.stop_grace")) return std::nullopt;
  const std::string value = TextIn(settings.environment(), kVariable);
  if (value.empty()) return std::nullopt;
  return Setting{value, kVariable};
}

absl::StatusOr<absl::Duration> ParseSomeTime(absl::string_view text) {
  absl::StatusOr<absl::Duration> time = ParseDuration(text);
  if (!time.ok() || *time > absl::ZeroDuration()) return time;
  return absl::InvalidArgumentError(
      absl::StrCat("expected more than 0, got '", text, "'; leave it out for the default"));
}

absl::Status TakeTimes(const Settings& settings, v1::JobSpec& job) {
  const struct {
    const char* flag;
    google::protobuf::Duration* (*field)(v1::JobSpec&);
    bool some = false;  // 0 is refused, because it would mean the default
  } kTimes[] = {
      {"join-timeout",
       [](v1::JobSpec& j) { return j.mutable_rendezvous()->mutable_join_timeout(); }, true},
      {"settle", [](v1::JobSpec& j) { return j.mutable_rendezvous()->mutable_settle(); }},
      {"start-timeout", [](v1::JobSpec& j) { return j.mutable_timeouts()->mutable_start(); }, true},
      {"progress-timeout", [](v1::JobSpec& j) { return j.mutable_timeouts()->mutable_progress(); }},
      {"silence-timeout", [](v1::JobSpec& j) { return j.mutable_timeouts()->mutable_silence(); }},
      {"stop-grace", [](v1::JobSpec& j) { return j.mutable_timeouts()->mutable_stop_grace(); }},
      {"total-timeout", [](v1::JobSpec& j) { return j.mutable_timeouts()->mutable_total(); }},
      {"restart-window", [](v1::JobSpec& j) { return j.mutable_restart()->mutable_window(); },
       true},
  };
  if (const std::optional<Setting> shutdown = Shutdown(settings)) {
    const absl::StatusOr<absl::Duration> grace = Seconds(shutdown->value);
    if (!grace.ok()) return Named(*shutdown, grace.status());
    *job.mutable_timeouts()->mutable_stop_grace() = ToProto(*grace);
  }
  for (const auto& time : kTimes) {
    RETURN_IF_ERROR(Take(settings, time.flag, time.some ? ParseSomeTime : ParseDuration,
                         [&](absl::Duration value) { *time.field(job) = ToProto(value); }));
  }
  return absl::OkStatus();
}

absl::Status TakeRestarts(const Settings& settings, RunOptions& options) {
  v1::JobSpec& job = options.job;
  RETURN_IF_ERROR(Take(settings, "max-restarts", ParseCount,
                       [&](uint32_t n) { job.mutable_restart()->set_max(n); }));
  RETURN_IF_ERROR(Take(settings, "backoff", ParseDurationRange, [&](const auto& range) {
    *job.mutable_restart()->mutable_backoff_min() = ToProto(range.first);
    *job.mutable_restart()->mutable_backoff_max() = ToProto(range.second);
  }));
  RETURN_IF_ERROR(Take(settings, "restart-on", ListOf(ParseFailureCause), [&](const auto& causes) {
    job.mutable_restart()->clear_on();
    for (const v1::FailureCause cause : causes) job.mutable_restart()->add_on(cause);
  }));
  // A switch that is not given does not change the spec.
  ASSIGN_OR_RETURN(const bool in_place, settings.Switch("in-place"));
  if (in_place) job.mutable_restart()->set_in_place(true);
  if (settings.Get("standby").has_value()) {
    ASSIGN_OR_RETURN(const bool standby, settings.Switch("standby"));
    job.mutable_restart()->set_standby(standby);
  }
  ASSIGN_OR_RETURN(const bool cold, settings.Switch("no-warm"));
  if (cold) job.mutable_restart()->set_warm(false);
  RETURN_IF_ERROR(Take(settings, "preload", ListOf(ParseModuleName), [&](const auto& modules) {
    job.mutable_restart()->clear_preload();
    for (const std::string& module : modules) job.mutable_restart()->add_preload(module);
  }));
  RETURN_IF_ERROR(Take(settings, "signals-to-handle", ListOf(ParseSignal), [&](const auto& all) {
    options.signals = {all.begin(), all.end()};
  }));
  return Take(settings, "never-exit-codes", ListOf(ParseExitCode), [&](const auto& codes) {
    job.mutable_restart()->clear_never_exit_codes();
    for (const uint32_t code : codes) job.mutable_restart()->add_never_exit_codes(code);
  });
}

absl::Status TakeWorkers(const Settings& settings, RunOptions& options) {
  v1::JobSpec& job = options.job;
  RETURN_IF_ERROR(Take(settings, "role", OneLineText, [&](std::string s) { job.set_role(s); }));
  RETURN_IF_ERROR(
      Take(settings, "working-dir", Text, [&](std::string s) { job.set_working_dir(s); }));
  for (const Setting& setting : settings.All("env")) {
    const size_t equals = setting.value.find('=');
    const std::string name = setting.value.substr(0, equals);
    const auto here = settings.environment().find(name);
    const bool from_here = equals == std::string::npos;
    if (name.empty() || (from_here && here == settings.environment().end())) {
      return Named(setting, absl::InvalidArgumentError(
                                absl::StrCat("expected NAME=VALUE, or the NAME of a variable that "
                                             "is set here, got '",
                                             setting.value, "'")));
    }
    const absl::Status allowed = CheckVariableName(name);
    if (!allowed.ok()) return Named(setting, allowed);
    (*job.mutable_env())[name] = from_here ? here->second : setting.value.substr(equals + 1);
  }
  // A switch that is not given does not change the spec.
  ASSIGN_OR_RETURN(const bool no_agent_store, settings.Switch("no-agent-store"));
  if (no_agent_store) job.set_agent_store(false);
  ASSIGN_OR_RETURN(const bool encrypt, settings.Switch("encrypt"));
  if (encrypt) job.set_encrypt(true);
  RETURN_IF_ERROR(Take(settings, "env-style",
                       ListOf(OneOf<std::string>({{"slurm", "slurm"}, {"mpi", "mpi"}})),
                       [&](const auto& styles) {
                         for (const std::string& style : styles) {
                           absl::StrAppend(&options.workers.env_style,
                                           options.workers.env_style.empty() ? "" : ",", style);
                         }
                       }));
  RETURN_IF_ERROR(Take(
      settings, "numa-binding",
      OneOf<std::string>(
          {{"node", "numa"}, {"socket", "numa"}, {"exclusive", "numa"}, {"core-complex", "numa"}}),
      [&](std::string bind) { job.mutable_placement()->set_bind(bind); }));
  RETURN_IF_ERROR(Take(
      settings, "bind",
      OneOf<std::string>({{"none", "none"}, {"core", "core"}, {"numa", "numa"}, {"gpu", "gpu"}}),
      [&](std::string bind) { job.mutable_placement()->set_bind(bind); }));
  RETURN_IF_ERROR(Take(settings, "gpus-per-worker", OneOf<bool>({{"all", false}, {"own", true}}),
                       [&](bool own) { options.workers.gpus_per_worker_own = own; }));
  ASSIGN_OR_RETURN(options.workers.virtual_local_rank, settings.Switch("virtual-local-rank"));
  return absl::OkStatus();
}

// "3", or "0:1,1:3".
absl::StatusOr<StreamChoice> ParseStreamChoice(absl::string_view text) {
  const auto bad = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("expected 0 to 3, or by local rank 0:1,1:3, got '", text, "'"));
  };
  StreamChoice choice;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const size_t colon = part.find(':');
    const absl::StatusOr<uint32_t> what =
        ParseCount(colon == part.npos ? part : part.substr(colon + 1));
    if (!what.ok() || *what > 3) return bad();
    if (colon == part.npos) {
      if (part.size() != text.size()) return bad();
      choice.all = *what;
      continue;
    }
    const absl::StatusOr<uint32_t> rank = ParseCount(part.substr(0, colon));
    if (!rank.ok()) return bad();
    choice.by_local_rank[*rank] = *what;
  }
  return choice;
}

absl::Status TakeOutput(const Settings& settings, RunOptions& options) {
  RETURN_IF_ERROR(Take(settings, "log-dir", Text,
                       [&](std::string dir) { options.job.mutable_logs()->set_dir(dir); }));
  RETURN_IF_ERROR(Take(settings, "redirects", ParseStreamChoice,
                       [&](StreamChoice choice) { options.redirects = std::move(choice); }));
  RETURN_IF_ERROR(Take(settings, "tee", ParseStreamChoice,
                       [&](StreamChoice choice) { options.tee = std::move(choice); }));
  RETURN_IF_ERROR(
      Take(settings, "logs-specs", OneOf<bool>({{"default", true}}), [](bool /*of torchrun*/) {}));
  agent::OutputOptions& output = options.output;
  RETURN_IF_ERROR(Take(settings, "local-ranks-filter", ListOf(ParseCount), [&](const auto& ranks) {
    output.terminal_local_ranks.insert(ranks.begin(), ranks.end());
  }));
  output.prefix_template =
      settings.GetOr("log-line-prefix-template",
                     TextIn(settings.environment(), "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"));
  output.stdout_filters = ParseTexts(settings.GetOr("duplicate-stdout-filters", ""));
  output.stderr_filters = ParseTexts(settings.GetOr("duplicate-stderr-filters", ""));
  RETURN_IF_ERROR(Take(settings, "output", OneOf<bool>({{"plain", false}, {"json", true}}),
                       [&](bool json) { options.json = json; }));
  ASSIGN_OR_RETURN(options.no_progress, settings.Switch("no-progress"));
  ASSIGN_OR_RETURN(options.timeline, settings.Switch("timeline"));
  for (const auto& [flag, why] : FlagsWithoutMeaning()) {
    const std::optional<Setting> setting = settings.Get(flag);
    if (!setting.has_value()) continue;
    options.notices.push_back(absl::StrCat(setting->origin, " has no effect here: ", why));
  }
  return absl::OkStatus();
}

// Flags override the spec.
absl::Status TakeJobFlags(const Settings& settings, RunOptions& options) {
  RETURN_IF_ERROR(TakeSize(settings, options.job));
  RETURN_IF_ERROR(TakeTimes(settings, options.job));
  RETURN_IF_ERROR(TakeRestarts(settings, options));
  RETURN_IF_ERROR(TakeWorkers(settings, options));
  return TakeOutput(settings, options);
}

constexpr absl::Duration kMaxAdoptTimeout = absl::Hours(24);

absl::StatusOr<std::string> ParseStateDir(const std::string& text) {
  if (!text.empty()) return text;
  return absl::InvalidArgumentError("expected a directory, or none for nowhere, got ''");
}

absl::StatusOr<uint32_t> Port(const std::string& text) {
  const absl::StatusOr<uint32_t> port = ParseCount(text);
  if (port.ok() && *port >= 1 && *port <= 65535) return port;
  return absl::InvalidArgumentError(
      absl::StrCat("expected a port from 1 to 65535, got '", text, "'"));
}

absl::StatusOr<absl::Duration> ParseAdoptTimeout(const std::string& text) {
  absl::StatusOr<absl::Duration> time = ParseDuration(text);
  if (!time.ok() || *time <= kMaxAdoptTimeout) return time;
  return absl::InvalidArgumentError(absl::StrCat(
      "expected at most ", absl::FormatDuration(kMaxAdoptTimeout), ", got '", text, "'"));
}

auto Into(google::protobuf::Duration* field) {
  return [field](absl::Duration value) { *field = ToProto(value); };
}

// Removes quotes, which a shell would have removed and other starters do not.
absl::string_view Unquoted(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  for (const absl::string_view quote : {"'", "\""}) {
    if (absl::ConsumePrefix(&text, quote)) absl::ConsumeSuffix(&text, quote);
    absl::ConsumeSuffix(&text, quote);
  }
  return text;
}

absl::Status TakeRendezvousConf(const Settings& settings, RunOptions& options) {
  const std::optional<Setting> conf = settings.Get("rdzv-conf");
  if (!conf.has_value()) return absl::OkStatus();
  auto& rendezvous = *options.job.mutable_rendezvous();
  for (const absl::string_view pair :
       absl::StrSplit(Unquoted(conf->value), ',', absl::SkipWhitespace())) {
    const size_t equals = pair.find('=');
    if (equals == pair.npos) {
      return Named(*conf, absl::InvalidArgumentError(
                              absl::StrCat("expected KEY=VALUE,..., got '", pair, "'")));
    }
    const absl::string_view key = Unquoted(pair.substr(0, equals));
    const std::string value(Unquoted(pair.substr(equals + 1)));
    if (key != "join_timeout" && key != "last_call_timeout" && key != "timeout") {
      options.notices.push_back(absl::StrCat(conf->origin, ": ", key, " has no effect here"));
      continue;
    }
    const absl::StatusOr<absl::Duration> seconds = Seconds(value);
    if (!seconds.ok()) {
      return Named(*conf,
                   absl::InvalidArgumentError(absl::StrCat(key, ": ", seconds.status().message())));
    }
    (key == "last_call_timeout" ? Into(rendezvous.mutable_settle())
                                : Into(rendezvous.mutable_join_timeout()))(*seconds);
  }
  return absl::OkStatus();
}

absl::Status TakeNode(const Settings& settings, RunOptions& options) {
  RETURN_IF_ERROR(Take(settings, "node-rank", ParseCount,
                       [&](uint32_t rank) { options.node_rank = static_cast<int>(rank); }));
  RETURN_IF_ERROR(
      Take(settings, "node-name", Text, [&](std::string name) { options.node_name = name; }));
  RETURN_IF_ERROR(
      Take(settings, "local-addr", ParseAddress, [&](std::string a) { options.local_addr = a; }));
  RETURN_IF_ERROR(
      Take(settings, "bind-host", Text, [&](std::string h) { options.bind_host = HostIn(h); }));
  RETURN_IF_ERROR(
      Take(settings, "token-file", Text, [&](std::string f) { options.token_file = f; }));
  RETURN_IF_ERROR(
      Take(settings, "state-dir", ParseStateDir, [&](std::string d) { options.state_dir = d; }));
  RETURN_IF_ERROR(Take(settings, "http", Text, [&](std::string h) { options.http = h; }));
  RETURN_IF_ERROR(Take(settings, "tls-dir", Text, [&](std::string d) { options.tls_dir = d; }));
  ASSIGN_OR_RETURN(options.insecure, settings.Switch("insecure"));
  RETURN_IF_ERROR(Take(settings, "orphan-timeout", ParseDuration,
                       [&](absl::Duration d) { options.orphan_timeout = d; }));
  RETURN_IF_ERROR(Take(settings, "adopt-timeout", ParseAdoptTimeout,
                       [&](absl::Duration d) { options.adopt_timeout = d; }));
  ASSIGN_OR_RETURN(options.strict_fencing, settings.Switch("strict-fencing"));
  RETURN_IF_ERROR(
      Take(settings, "master-addr", Text, [&](std::string a) { options.master_addr = a; }));
  RETURN_IF_ERROR(
      Take(settings, "master-port", Port, [&](uint32_t port) { options.master_port = port; }));
  // "cadre" is accepted and ignored: PET_RDZV_BACKEND=cadre may be set for a torchrun that this
  // job's command starts.
  return Take(
      settings, "rdzv-backend",
      OneOf<bool>(
          {{"c10d", true}, {"static", true}, {"cadre", true}, {"etcd", false}, {"etcd-v2", false}}),
      [&](bool meant) {
        if (!meant) {
          options.notices.push_back(
              "--rdzv-backend etcd: no etcd is needed; the node that owns the endpoint serves the "
              "rendezvous");
        }
      });
}

// "2", or "1 to 3".
std::string NodesAskedFor(const RunOptions& options) {
  const v1::NodeRange& nodes = options.job.nodes();
  return nodes.min() == nodes.max() ? absl::StrCat(nodes.min())
                                    : absl::StrCat(nodes.min(), " to ", nodes.max());
}

// The number of nodes is fixed by the launcher that started this one.
absl::Status CheckNodes(const Settings& settings, const Identity& identity,
                        const RunOptions& options) {
  const v1::NodeRange& nodes = options.job.nodes();
  // Other nodes may join at an endpoint that the user names.
  if (identity.launch.empty() || identity.nodes == 0 || settings.Get("rdzv-endpoint").has_value() ||
      (identity.nodes >= nodes.min() && identity.nodes <= nodes.max() + options.job.spares())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the job asks for ", NodesAskedFor(options), nodes.max() == 1 ? " node" : " nodes", ", but ",
      identity.source, " runs this on ", identity.nodes,
      "; make them agree, or leave the job's number out"));
}

// Refuses a node that would be alone in a job of its own, although its starter tells of several
// nodes.
absl::Status CheckPlace(const Identity& identity, const RunOptions& options) {
  const v1::NodeRange& nodes = options.job.nodes();
  if (nodes.min() == 0 && identity.nodes == 0 && !identity.nodes_hint.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(identity.nodes_hint,
                     ": add --nnodes N, the same on every node, or --standalone where each is "
                     "a job of its own"));
  }
  const int64_t most = int64_t{nodes.max()} + options.job.spares();
  if (options.node_rank >= 0 || nodes.max() == 0 || identity.node_rank < most) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the job asks for ", NodesAskedFor(options), nodes.max() == 1 ? " node" : " nodes", ", but ",
      identity.source, " says that this is node ", identity.node_rank,
      ", counting from 0; make them agree, or add --standalone where each is a job of its own"));
}

// "host:0", which means any free port for torchrun.
bool IsAnyPort(absl::string_view endpoint) {
  return absl::EndsWith(endpoint, "]:0") ||
         (absl::EndsWith(endpoint, ":0") && endpoint.find(':') == endpoint.size() - 2);
}

// A spare node may have a rank beyond those of the nodes that take part.
absl::Status CheckNodeRank(const Settings& settings, const RunOptions& options) {
  const std::optional<Setting> rank = settings.Get("node-rank");
  const int64_t nodes = int64_t{options.job.nodes().max()} + options.job.spares();
  if (!rank.has_value() || options.job.nodes().max() == 1 || options.node_rank < nodes) {
    return absl::OkStatus();
  }
  return Named(*rank, absl::InvalidArgumentError(absl::StrCat("expected a rank from 0 to ",
                                                              nodes - 1, " of ", nodes,
                                                              " nodes, got '", rank->value, "'")));
}

absl::Status StandAlone(const Settings& settings, RunOptions& options) {
  if (options.job.nodes().min() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--standalone runs one node, but the job has at least ",
                     options.job.nodes().min(), "; leave one of them out"));
  }
  options.job.mutable_nodes()->set_max(1);
  for (const char* flag : {"token-file", "tls-dir", "insecure", "rdzv-endpoint"}) {
    const std::optional<Setting> idle = settings.Get(flag);
    // The dashboard uses them.
    if (!idle.has_value() || !options.http.empty()) continue;
    // A variable may be set for all commands.
    if (!absl::StartsWith(idle->origin, "--")) continue;
    options.notices.push_back(
        absl::StrCat(idle->origin, " has no effect here: --standalone opens no port"));
  }
  return absl::OkStatus();
}

absl::Status TakeRendezvousFlags(const Settings& settings, RunOptions& options) {
  RETURN_IF_ERROR(TakeRendezvousConf(settings, options));
  return TakeNode(settings, options);
}

// Uses the environment's values for settings without a flag.
absl::Status TakeIdentity(const Settings& settings, const Identity& identity, RunOptions& options) {
  ASSIGN_OR_RETURN(const bool standalone, settings.Switch("standalone"));
  if (standalone) return absl::OkStatus();
  if (options.job.nodes().min() == 0 && identity.nodes > 0) {
    options.job.mutable_nodes()->set_min(identity.nodes);
    options.job.mutable_nodes()->set_max(identity.nodes);
  }
  RETURN_IF_ERROR(CheckNodes(settings, identity, options));
  RETURN_IF_ERROR(CheckPlace(identity, options));
  v1::WorkersPerNode& workers = *options.job.mutable_workers_per_node();
  if (workers.kind() == v1::WorkersPerNode::KIND_UNSPECIFIED && identity.local_tasks > 1) {
    // Several tasks per node were requested, which means as many workers.
    workers.set_kind(v1::WorkersPerNode::COUNT);
    workers.set_count(identity.local_tasks);
  }
  if (options.node_rank < 0) options.node_rank = identity.node_rank;
  if (options.node_name.empty()) options.node_name = identity.node_name;
  options.expected_nodes = identity.node_names;
  options.names_are_slurms = identity.names_are_slurms;
  options.slurm_aliases = identity.slurm_aliases;
  options.launch = identity.launch;
  options.allocation = identity.allocation;
  return absl::OkStatus();
}

// Chooses the endpoint once the job is complete. It is never localhost unless the user asked for
// that. `nodes_given`: the user has said how many nodes there are.
absl::Status ChooseEndpoint(const Settings& settings, const std::optional<Identity>& identity,
                            bool nodes_given, RunOptions& options) {
  ASSIGN_OR_RETURN(const bool standalone, settings.Switch("standalone"));
  if (standalone) return StandAlone(settings, options);
  RETURN_IF_ERROR(CheckNodeRank(settings, options));
  const std::optional<Setting> given = settings.Get("rdzv-endpoint");
  const bool several = options.job.nodes().max() > 1;
  if (given.has_value()) {
    // No other node joins such a job of one node, so it needs no port.
    if (IsAnyPort(given->value) && !several) return absl::OkStatus();
    if (IsAnyPort(given->value)) {
      return Named(*given, absl::InvalidArgumentError(absl::StrCat(
                               "port 0 is any free port, which the other nodes cannot know; name "
                               "one, the same on every node, for ",
                               NodesAskedFor(options), " nodes")));
    }
    absl::StatusOr<std::vector<Endpoint>> endpoints =
        ParseEndpoints(given->value, kDefaultRendezvousPort);
    if (!endpoints.ok()) return Named(*given, endpoints.status());
    options.endpoints = *std::move(endpoints);
    if (identity.has_value() && identity->allocation != 0) options.serves = identity->serves;
    if (options.endpoints.size() > 1 && !settings.Get("etcd").has_value()) {
      options.notices.push_back(
          "several endpoints, but no --etcd: this node joins the server that leads and serves no "
          "rendezvous itself");
    }
    return absl::OkStatus();
  }
  if (!several && !identity.has_value()) {
    ASSIGN_OR_RETURN(const std::optional<uint32_t> allocated,
                     NumberIn(settings.environment(), "SLURM_NNODES"));
    if (allocated.value_or(1) > 1 && !nodes_given) {
      options.notices.push_back(absl::StrCat(
          "SLURM_NNODES is ", *allocated,
          ", but srun did not start this launcher, so it runs on this node alone; put 'srun "
          "--ntasks-per-node=1' before 'cadre run' for all of them, or add --nnodes 1"));
    }
    return absl::OkStatus();
  }
  if (!options.master_addr.empty() && several) {
    options.endpoints = {
        Endpoint{options.master_addr,
                 options.master_port == 0 ? 29500 : static_cast<int>(options.master_port)}};
    // The rendezvous uses that port; workers get one that is free.
    if (const std::optional<Setting> port = settings.Get("master-port")) {
      options.notices.push_back(absl::StrCat(port->origin, ": the nodes meet at ", port->value,
                                             ", so workers get another MASTER_PORT"));
    }
    options.master_addr.clear();
    options.master_port = 0;
    return absl::OkStatus();
  }
  if (!several) return absl::OkStatus();
  if (identity.has_value() && !identity->endpoint_host.empty()) {
    const int port =
        identity->endpoint_port == 0 ? kDefaultRendezvousPort : identity->endpoint_port;
    options.endpoints = {Endpoint{identity->endpoint_host, port}};
    options.serves = identity->serves;
    options.endpoint_comes_later = identity->endpoint_comes_later;
    // The user's own token is for nodes that do not share a home directory.
    options.by_board = !identity->launch.empty() &&
                       (options.token_file.empty() || identity->tasks > 0) &&
                       !settings.Get("etcd").has_value();
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the job has ", NodesAskedFor(options), " nodes, but no endpoint at which they meet",
      identity.has_value() ? absl::StrCat(" (", identity->source, " names none)") : "",
      "; add --rdzv-endpoint HOST[:PORT], the same on every node"));
}

bool OfCommandLine(const Setting& setting) { return absl::StartsWith(setting.origin, "--"); }

// The values of --set on the command line, or otherwise the one of the variable, which holds
// whether or not the command line has others.
std::vector<Setting> SetsOf(const Settings& settings, bool command_line) {
  std::vector<Setting> sets;
  if (!command_line) {
    if (std::optional<Setting> set = settings.FromSurroundings("set")) sets.push_back(*set);
    return sets;
  }
  for (Setting& set : settings.All("set")) {
    if (OfCommandLine(set)) sets.push_back(std::move(set));
  }
  return sets;
}

absl::Status ApplySetsOf(const Settings& settings, bool command_line, v1::JobSpec& job) {
  for (const Setting& set : SetsOf(settings, command_line)) {
    const absl::Status applied = SetInSpec(set.value, job);
    if (!applied.ok()) return Named(set, applied);
  }
  return absl::OkStatus();
}

absl::string_view PathOf(const Setting& set) {
  return absl::string_view(set.value).substr(0, set.value.find('='));
}

// The properties that flags of the command line give, and those flags: "restart.max", and
// "--max-restarts 3".
std::map<std::string, std::string> PropertiesOfFlags(const Settings& settings) {
  std::map<std::string, std::string> given;
  for (const Flag& flag : RunFlags()) {
    if (flag.property.empty()) continue;
    for (const Setting& setting : settings.All(flag.name)) {
      if (!OfCommandLine(setting)) continue;
      if (flag.name == "env") {
        // A variable's value may be a secret.
        given[absl::StrCat("env.", PathOf(setting))] = absl::StrCat("--env ", PathOf(setting));
      } else {
        given[flag.property] =
            flag.value.empty() ? setting.origin : absl::StrCat(setting.origin, " ", setting.value);
      }
    }
  }
  return given;
}

// The same for equal jobs.
std::string Bytes(const v1::JobSpec& job) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  // The entries of a map may have any order otherwise.
  coded.SetSerializationDeterministic(true);
  job.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

// Applies --set to a job that has the values of the flags. Of several for one property the last one
// counts; it must not contradict a flag of the command line.
absl::Status TakeSets(const Settings& settings, v1::JobSpec& job) {
  const v1::JobSpec by_flags = job;
  RETURN_IF_ERROR(ApplySetsOf(settings, /*command_line=*/true, job));
  std::map<std::string, Setting> last;
  for (const Setting& set : SetsOf(settings, /*command_line=*/true)) {
    last[std::string(PathOf(set))] = set;
  }
  if (last.empty()) return absl::OkStatus();
  const std::map<std::string, std::string> flags = PropertiesOfFlags(settings);
  for (const auto& [path, set] : last) {
    const auto flag = flags.find(path);
    if (flag == flags.end()) continue;
    v1::JobSpec both = by_flags;
    RETURN_IF_ERROR(SetInSpec(set.value, both));
    if (Bytes(both) == Bytes(by_flags)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(flag->second, " and --set ", absl::StartsWith(path, "env.") ? path : set.value,
                     " contradict each other: leave one of them out"));
  }
  return absl::OkStatus();
}

// As a shell takes it for one word.
std::string Word(const std::string& text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(c) || absl::StrContains("_-./:=,+@%", c);
  });
  if (plain && !text.empty()) return text;
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

}  // namespace

absl::Status ApplySets(const Settings& settings, v1::JobSpec& job) {
  RETURN_IF_ERROR(ApplySetsOf(settings, /*command_line=*/false, job));
  return ApplySetsOf(settings, /*command_line=*/true, job);
}

bool SetsProperty(const Settings& settings, absl::string_view path, bool command_line_only) {
  const auto sets = [&](bool command_line) {
    return absl::c_any_of(SetsOf(settings, command_line),
                          [path](const Setting& set) { return PathOf(set) == path; });
  };
  return sets(true) || (!command_line_only && sets(false));
}

std::string OldFlagsNotice(const Settings& settings) {
  std::vector<std::string> old;
  std::string now;
  for (const Flag& flag : RunFlags()) {
    const std::optional<Setting> setting = flag.old ? settings.Get(flag.name) : std::nullopt;
    if (!setting.has_value() || !OfCommandLine(*setting)) continue;
    old.push_back(flag.value.empty() ? setting->origin
                                     : absl::StrCat(setting->origin, " ", Word(setting->value)));
    absl::StrAppend(&now, " --set ", Word(AsSet(flag.name, setting->value)));
  }
  if (old.empty()) return "";
  if (old.size() == 1) {
    return absl::StrCat(old[0], " is now", now, "; the old flag will be refused from ",
                        kOldFlagsEnd);
  }
  const std::string last = old.back();
  old.pop_back();
  return absl::StrCat(absl::StrJoin(old, ", "), " and ", last, " are now", now,
                      "; the old flags will be refused from ", kOldFlagsEnd);
}

std::string JobNameFrom(absl::string_view text) {
  std::string name;
  for (const char c : absl::AsciiStrToLower(text)) {
    const bool good = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
    name += good ? c : '-';
  }
  while (!name.empty() && name[0] == '-') name.erase(0, 1);
  if (name.size() > kMaxNameBytes) name.resize(kMaxNameBytes);
  return name.empty() ? "job" : name;
}

std::string JobNameOfProgram(absl::string_view program) {
  const absl::string_view base = program.substr(program.rfind('/') + 1);
  return JobNameFrom(base.substr(0, base.find('.', 1)));
}

absl::StatusOr<std::vector<std::string>> BuildCommand(const Settings& settings,
                                                      const v1::JobSpec& job,
                                                      std::vector<std::string> program,
                                                      bool for_python) {
  ASSIGN_OR_RETURN(const bool module, settings.Switch("module"));
  ASSIGN_OR_RETURN(const bool no_python, settings.Switch("no-python"));
  ASSIGN_OR_RETURN(const bool run_path, settings.Switch("run-path"));
  if (module && no_python) {
    return absl::InvalidArgumentError("--module and --no-python contradict each other");
  }
  if (run_path && module) {
    return absl::InvalidArgumentError("--module and --run-path contradict each other");
  }
  // As in torchrun, --run-path overrides --no-python.
  const bool script = !no_python && (for_python || absl::EndsWith(program[0], ".py"));
  if (!module && !run_path && !script) return program;
  std::map<std::string, std::string> environment = settings.environment();
  for (const auto& [name, value] : job.env()) environment[name] = value;
  const std::string python = PythonFor(environment, ThisProgram());
  std::vector<std::string> command = {python.empty() ? "python3" : python, "-u"};
  if (module) command.push_back("-m");
  if (run_path) {
    command.insert(command.end(), {"-c",
                                   "import runpy, sys; sys.argv = sys.argv[1:]; "
                                   "runpy.run_path(sys.argv[0], run_name='__main__')"});
  }
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

std::vector<std::string> ParseTexts(absl::string_view text) {
  std::vector<std::string> texts;
  bool begins = true;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool doubled = text.substr(i, 2) == ",,";
    if (text[i] == ',' && !doubled) {
      begins = true;
      continue;
    }
    if (begins) texts.emplace_back();
    begins = false;
    texts.back() += text[i];
    i += doubled;
  }
  return texts;
}

absl::StatusOr<RunOptions> ResolveRun(const Settings& settings, std::optional<v1::JobSpec> spec,
                                      const std::optional<Identity>& identity,
                                      const IsForPythonThere& is_for_python) {
  RunOptions options;
  if (spec.has_value()) options.job = *std::move(spec);
  // Before the program is determined, because a flag without its value has taken the program for
  // it. The rendezvous flags come first, because --join-timeout and --settle override them.
  RETURN_IF_ERROR(ApplySetsOf(settings, /*command_line=*/false, options.job));
  RETURN_IF_ERROR(TakeRendezvousFlags(settings, options));
  RETURN_IF_ERROR(TakeJobFlags(settings, options));
  RETURN_IF_ERROR(TakeSets(settings, options.job));
  const std::string old_flags = OldFlagsNotice(settings);
  // A launcher that another one starts on a host of --hostfile gets its token there; the other one
  // has shown the line.
  if (!old_flags.empty() && options.token_file != "-") options.notices.push_back(old_flags);
  const bool nodes_given = options.job.nodes().min() > 0;
  std::vector<std::string> program = settings.rest();
  if (!program.empty() && !options.job.command().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the job's file, or --set command, names the program already; leave '",
                     program[0], "' out, or change 'command' there"));
  }
  if (program.empty()) program.assign(options.job.command().begin(), options.job.command().end());
  if (program.empty()) {
    return absl::InvalidArgumentError(
        "the program is missing; usage: cadre run [options] [--] PROGRAM [ARGUMENT...]");
  }
  if (program[0].empty()) {
    return absl::InvalidArgumentError(
        "the program is empty text; expected a program's name or path");
  }
  const bool for_python =
      is_for_python != nullptr && is_for_python(program[0], options.job.working_dir());
  ASSIGN_OR_RETURN(const std::vector<std::string> command,
                   BuildCommand(settings, options.job, program, for_python));
  options.job.mutable_command()->Assign(command.begin(), command.end());
  ASSIGN_OR_RETURN(const bool module, settings.Switch("module"));
  // A macro is expanded for each worker.
  const bool macro = absl::StrContains(program[0], "${");
  if (command.size() > program.size() && !module && !macro) options.script = program[0];
  RETURN_IF_ERROR(ChooseName(settings, identity, program, options));
  if (identity.has_value()) RETURN_IF_ERROR(TakeIdentity(settings, *identity, options));
  options.logs_anywhere = options.job.logs().dir().empty();
  FillSpecDefaults(options.job);
  options.workers.bind = options.job.placement().bind();
  if (options.adopt_timeout > absl::ZeroDuration() && options.job.restart().in_place()) {
    return absl::InvalidArgumentError(
        "--adopt-timeout and recovery in place (--in-place) do not go together: leave one out");
  }
  if (options.adopt_timeout > absl::ZeroDuration() && options.job.restart().standby()) {
    return absl::InvalidArgumentError(
        "--adopt-timeout and processes that stand by (restart.standby=true) do not go together: "
        "leave one out");
  }
  if (options.insecure && options.job.encrypt()) {
    return absl::InvalidArgumentError(
        "--encrypt does not go with --insecure, which would send its key in clear text: "
        "leave one out");
  }
  RETURN_IF_ERROR(ChooseEndpoint(settings, identity, nodes_given, options));
  return options;
}

}  // namespace cadre::launcher
