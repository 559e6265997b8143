#include "launcher/flags/run_options.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/duration.h"
#include "base/status_macros.h"
#include "launcher/flags/run_flags.h"
#include "launcher/spec/reader.h"
#include "launcher/spec/scalars.h"

namespace cadre {
namespace {

constexpr absl::Duration kMaxAdoptTimeout = absl::Hours(24);

absl::Status Named(const Setting& setting, const absl::Status& status) {
  return absl::InvalidArgumentError(absl::StrCat(setting.origin, ": ", status.message()));
}

// Reads setting `name`, where there is one, with `parse`, and gives the result to `store`.
template <typename Parse, typename Store>
absl::Status Take(const Settings& settings, const char* name, Parse parse, Store store) {
  const std::optional<Setting> setting = settings.Get(name);
  if (!setting.has_value()) return absl::OkStatus();
  auto value = parse(setting->value);
  if (!value.ok()) return Named(*setting, value.status());
  store(*std::move(value));
  return absl::OkStatus();
}

absl::StatusOr<std::string> Text(const std::string& text) { return text; }

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

absl::StatusOr<absl::Duration> Seconds(const std::string& text) {
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds) && seconds >= 0 && seconds < 1e9) {
    return absl::Seconds(seconds);
  }
  return absl::InvalidArgumentError(absl::StrCat("expected seconds, got '", text, "'"));
}

absl::StatusOr<absl::Duration> ParseAdoptTimeout(const std::string& text) {
  absl::StatusOr<absl::Duration> time = ParseDuration(text);
  if (!time.ok() || *time <= kMaxAdoptTimeout) return time;
  return absl::InvalidArgumentError(absl::StrCat(
      "expected at most ", absl::FormatDuration(kMaxAdoptTimeout), ", got '", text, "'"));
}

template <typename Parse>
auto ListOf(Parse parse) {
  return [parse](const std::string& text)
             -> absl::StatusOr<std::vector<typename decltype(parse(text))::value_type>> {
    std::vector<typename decltype(parse(text))::value_type> values;
    // No text is a list of nothing; a comma has something on both sides.
    if (text.empty()) return values;
    for (const absl::string_view part : absl::StrSplit(text, ',')) {
      auto value = parse(std::string(absl::StripAsciiWhitespace(part)));
      if (!value.ok()) return value.status();
      values.push_back(*std::move(value));
    }
    return values;
  };
}

template <typename Choice>
auto OneOf(std::vector<std::pair<std::string, Choice>> choices) {
  return [choices](const std::string& text) -> absl::StatusOr<Choice> {
    std::string expected;
    for (const auto& [word, choice] : choices) {
      if (word == text) return choice;
      absl::StrAppend(&expected, expected.empty() ? "" : ", ", word);
    }
    return absl::InvalidArgumentError(
        absl::StrCat("expected one of ", expected, ", got '", text, "'"));
  };
}

auto Into(google::protobuf::Duration* field) {
  return [field](absl::Duration value) { *field = ToProto(value); };
}

absl::Status TakeSize(const Settings& settings, v1::JobSpec& job) {
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

absl::Status TakeTimes(const Settings& settings, v1::JobSpec& job) {
  const struct {
    const char* flag;
    google::protobuf::Duration* (*field)(v1::JobSpec&);
  } kTimes[] = {
      {"join-timeout",
       [](v1::JobSpec& j) { return j.mutable_rendezvous()->mutable_join_timeout(); }},
      {"settle", [](v1::JobSpec& j) { return j.mutable_rendezvous()->mutable_settle(); }},
      {"start-timeout", [](v1::JobSpec& j) { return j.mutable_timeouts()->mutable_start(); }},
      {"progress-timeout", [](v1::JobSpec& j) { return j.mutable_timeouts()->mutable_progress(); }},
      {"silence-timeout", [](v1::JobSpec& j) { return j.mutable_timeouts()->mutable_silence(); }},
      {"stop-grace", [](v1::JobSpec& j) { return j.mutable_timeouts()->mutable_stop_grace(); }},
      {"total-timeout", [](v1::JobSpec& j) { return j.mutable_timeouts()->mutable_total(); }},
      {"restart-window", [](v1::JobSpec& j) { return j.mutable_restart()->mutable_window(); }},
  };
  if (!settings.Get("stop-grace").has_value()) {
    RETURN_IF_ERROR(Take(settings, "shutdown-timeout", Seconds, [&](absl::Duration grace) {
      *job.mutable_timeouts()->mutable_stop_grace() = ToProto(grace);
    }));
  }
  for (const auto& time : kTimes) {
    RETURN_IF_ERROR(Take(settings, time.flag, ParseDuration,
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
  // A switch that is not given leaves the spec as it is.
  ASSIGN_OR_RETURN(const bool in_place, settings.Switch("in-place"));
  if (in_place) job.mutable_restart()->set_in_place(true);
  if (settings.Get("standby").has_value()) {
    ASSIGN_OR_RETURN(const bool standby, settings.Switch("standby"));
    job.mutable_restart()->set_standby(standby);
  }
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
  RETURN_IF_ERROR(Take(settings, "role", Text, [&](std::string s) { job.set_role(s); }));
  RETURN_IF_ERROR(
      Take(settings, "working-dir", Text, [&](std::string s) { job.set_working_dir(s); }));
  for (const Setting& setting : settings.All("env")) {
    const size_t equals = setting.value.find('=');
    if (equals == std::string::npos || equals == 0) {
      return Named(setting, absl::InvalidArgumentError(
                                absl::StrCat("expected NAME=VALUE, got '", setting.value, "'")));
    }
    const std::string name = setting.value.substr(0, equals);
    const absl::Status allowed = CheckVariableName(name);
    if (!allowed.ok()) return Named(setting, allowed);
    (*job.mutable_env())[name] = setting.value.substr(equals + 1);
  }
  RETURN_IF_ERROR(
      Take(settings, "env-style", ListOf(OneOf<std::string>({{"slurm", "slurm"}, {"mpi", "mpi"}})),
           [&](const auto& styles) {
             for (const std::string& style : styles) {
               absl::StrAppend(&options.env_style, options.env_style.empty() ? "" : ",", style);
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
                       [&](bool own) { options.gpus_per_worker_own = own; }));
  ASSIGN_OR_RETURN(options.virtual_local_rank, settings.Switch("virtual-local-rank"));
  return absl::OkStatus();
}

absl::Status TakeOutput(const Settings& settings, RunOptions& options) {
  RETURN_IF_ERROR(Take(settings, "log-dir", Text,
                       [&](std::string dir) { options.job.mutable_logs()->set_dir(dir); }));
  RETURN_IF_ERROR(Take(settings, "redirects", ParseStreamChoice,
                       [&](StreamChoice choice) { options.redirects = std::move(choice); }));
  RETURN_IF_ERROR(Take(settings, "tee", ParseStreamChoice,
                       [&](StreamChoice choice) { options.tee = std::move(choice); }));
  OutputOptions& output = options.output;
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

absl::Status TakeRendezvousConf(const Settings& settings, RunOptions& options) {
  const std::optional<Setting> conf = settings.Get("rdzv-conf");
  if (!conf.has_value()) return absl::OkStatus();
  auto& rendezvous = *options.job.mutable_rendezvous();
  for (const absl::string_view pair : absl::StrSplit(conf->value, ',', absl::SkipWhitespace())) {
    const size_t equals = pair.find('=');
    if (equals == pair.npos) {
      return Named(*conf, absl::InvalidArgumentError(
                              absl::StrCat("expected KEY=VALUE,..., got '", pair, "'")));
    }
    const absl::string_view key = absl::StripAsciiWhitespace(pair.substr(0, equals));
    const std::string value(absl::StripAsciiWhitespace(pair.substr(equals + 1)));
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
      Take(settings, "local-addr", Text, [&](std::string a) { options.local_addr = a; }));
  RETURN_IF_ERROR(
      Take(settings, "bind-host", Text, [&](std::string h) { options.bind_host = HostIn(h); }));
  RETURN_IF_ERROR(
      Take(settings, "token-file", Text, [&](std::string f) { options.token_file = f; }));
  RETURN_IF_ERROR(
      Take(settings, "state-dir", ParseStateDir, [&](std::string d) { options.state_dir = d; }));
  RETURN_IF_ERROR(Take(settings, "http", Text, [&](std::string h) { options.http = h; }));
  RETURN_IF_ERROR(Take(settings, "tls-dir", Text, [&](std::string d) { options.tls_dir = d; }));
  RETURN_IF_ERROR(Take(settings, "orphan-timeout", ParseDuration,
                       [&](absl::Duration d) { options.orphan_timeout = d; }));
  RETURN_IF_ERROR(Take(settings, "adopt-timeout", ParseAdoptTimeout,
                       [&](absl::Duration d) { options.adopt_timeout = d; }));
  ASSIGN_OR_RETURN(options.strict_fencing, settings.Switch("strict-fencing"));
  RETURN_IF_ERROR(
      Take(settings, "master-addr", Text, [&](std::string a) { options.master_addr = a; }));
  RETURN_IF_ERROR(
      Take(settings, "master-port", Port, [&](uint32_t port) { options.master_port = port; }));
  return Take(settings, "rdzv-backend",
              OneOf<bool>({{"c10d", true}, {"static", true}, {"etcd", false}, {"etcd-v2", false}}),
              [&](bool meant) {
                if (!meant) {
                  options.notices.push_back(
                      "--rdzv-backend etcd: no etcd is needed; the endpoint's owner serves it");
                }
              });
}

// Where the nodes meet. Never localhost unless somebody said so.
absl::Status ChooseEndpoint(const Settings& settings, const std::optional<Identity>& identity,
                            RunOptions& options) {
  ASSIGN_OR_RETURN(const bool standalone, settings.Switch("standalone"));
  if (standalone) {
    if (options.job.nodes().min() > 1) {
      return absl::InvalidArgumentError(absl::StrCat("--standalone is one node, but ",
                                                     options.job.nodes().min(),
                                                     " are asked for; leave one of them out"));
    }
    options.job.mutable_nodes()->set_max(1);
    for (const char* flag : {"token-file", "tls-dir", "rdzv-endpoint"}) {
      const std::optional<Setting> idle = settings.Get(flag);
      // The dashboard has a use for them.
      if (!idle.has_value() || !options.http.empty()) continue;
      options.notices.push_back(
          absl::StrCat(idle->origin, " has no effect here: --standalone listens for nobody"));
    }
    return absl::OkStatus();
  }
  const std::optional<Setting> given = settings.Get("rdzv-endpoint");
  if (given.has_value()) {
    absl::StatusOr<std::vector<Endpoint>> endpoints =
        ParseEndpoints(given->value, kDefaultRendezvousPort);
    if (!endpoints.ok()) return Named(*given, endpoints.status());
    options.endpoints = *std::move(endpoints);
    if (identity.has_value() && identity->part != 0) options.serves = identity->serves;
    if (options.endpoints.size() > 1 && !settings.Get("etcd").has_value()) {
      options.notices.push_back(
          "several endpoints and no --etcd: this node joins the server that leads, and serves "
          "none");
    }
    return absl::OkStatus();
  }
  const bool several = options.job.nodes().max() > 1;
  if (!several && !identity.has_value()) return absl::OkStatus();
  if (!options.master_addr.empty() && several) {
    options.endpoints = {
        Endpoint{options.master_addr,
                 options.master_port == 0 ? 29500 : static_cast<int>(options.master_port)}};
    // The rendezvous has that port now; workers get one that is free.
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
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      options.job.nodes().max(), " nodes are asked for, but not where they meet",
      identity.has_value() ? absl::StrCat(" (", identity->source, " does not say)") : "",
      "; add --rdzv-endpoint HOST[:PORT], the same on every node"));
}

// The launcher around this one has decided how many nodes there are.
absl::Status CheckNodes(const Settings& settings, const Identity& identity,
                        const RunOptions& options) {
  const v1::NodeRange& nodes = options.job.nodes();
  // At an endpoint that a person names others may join.
  if (identity.launch.empty() || identity.nodes == 0 || settings.Get("rdzv-endpoint").has_value() ||
      (identity.nodes >= nodes.min() && identity.nodes <= nodes.max() + options.job.spares())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the job asks for ",
      nodes.min() == nodes.max() ? absl::StrCat(nodes.min())
                                 : absl::StrCat(nodes.min(), " to ", nodes.max()),
      nodes.max() == 1 ? " node" : " nodes", ", but ", identity.source, " runs this on ",
      identity.nodes, "; make them agree, or leave the job's number out"));
}

absl::Status TakeIdentity(const Settings& settings, const Identity& identity, RunOptions& options) {
  if (settings.Get("standalone").has_value()) return absl::OkStatus();
  if (options.job.nodes().min() == 0 && identity.nodes > 0) {
    options.job.mutable_nodes()->set_min(identity.nodes);
    options.job.mutable_nodes()->set_max(identity.nodes);
  }
  RETURN_IF_ERROR(CheckNodes(settings, identity, options));
  v1::WorkersPerNode& workers = *options.job.mutable_workers_per_node();
  if (workers.kind() == v1::WorkersPerNode::KIND_UNSPECIFIED && identity.local_tasks > 1) {
    // Who asks for several tasks per node means as many workers.
    workers.set_kind(v1::WorkersPerNode::COUNT);
    workers.set_count(identity.local_tasks);
  }
  if (options.node_rank < 0) options.node_rank = identity.node_rank;
  if (options.node_name.empty()) options.node_name = identity.node_name;
  options.expected_nodes = identity.node_names;
  options.names_are_slurms = identity.names_are_slurms;
  options.slurm_aliases = identity.slurm_aliases;
  options.launch = identity.launch;
  options.part = identity.part;
  return absl::OkStatus();
}

absl::Status ChooseName(const Settings& settings, const std::optional<Identity>& identity,
                        const std::vector<std::string>& program, v1::JobSpec& job) {
  const std::optional<Setting> name = settings.Get("job-name");
  if (name.has_value()) {
    const absl::Status good = CheckJobName(name->value);
    if (!good.ok()) return Named(*name, good);
    job.set_name(name->value);
    return absl::OkStatus();
  }
  const std::string id = settings.GetOr("rdzv-id", "");
  if (!id.empty() && id != "none") {
    job.set_name(JobNameFrom(id));
  } else if (job.name().empty() && identity.has_value() && !identity->job_name.empty()) {
    job.set_name(JobNameFrom(identity->job_name));
  } else if (job.name().empty()) {
    absl::string_view base = program.empty() ? "job" : absl::string_view(program[0]);
    base = base.substr(base.rfind('/') + 1);
    job.set_name(JobNameFrom(base.substr(0, base.find('.', 1))));
  }
  return absl::OkStatus();
}

}  // namespace

std::string JobNameFrom(absl::string_view text) {
  std::string name;
  for (const char c : absl::AsciiStrToLower(text)) {
    const bool good = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
    name += good ? c : '-';
  }
  while (!name.empty() && name[0] == '-') name.erase(0, 1);
  if (name.size() > 63) name.resize(63);
  return name.empty() ? "job" : name;
}

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

absl::StatusOr<std::vector<std::string>> BuildCommand(const Settings& settings,
                                                      std::vector<std::string> program) {
  ASSIGN_OR_RETURN(const bool module, settings.Switch("module"));
  ASSIGN_OR_RETURN(const bool no_python, settings.Switch("no-python"));
  ASSIGN_OR_RETURN(const bool run_path, settings.Switch("run-path"));
  if (module && no_python) {
    return absl::InvalidArgumentError("--module and --no-python contradict each other");
  }
  if (run_path && (module || no_python)) {
    return absl::InvalidArgumentError("--run-path goes with neither --module nor --no-python");
  }
  const bool script = !no_python && absl::EndsWith(program[0], ".py");
  if (!module && !run_path && !script) return program;
  const std::string python = TextIn(settings.environment(), "PYTHON_EXEC");
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

absl::StatusOr<RunOptions> ResolveRun(const Settings& settings, std::optional<v1::JobSpec> spec,
                                      const std::optional<Identity>& identity) {
  RunOptions options;
  if (spec.has_value()) options.job = *std::move(spec);
  std::vector<std::string> program = settings.rest();
  if (program.empty()) program.assign(options.job.command().begin(), options.job.command().end());
  if (program.empty()) {
    return absl::InvalidArgumentError(
        "the program is missing; usage: cadre run [options] [--] PROGRAM [ARGUMENT...]");
  }
  if (program[0].empty()) {
    return absl::InvalidArgumentError(
        "the program is empty text; expected a program's name or path");
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> command, BuildCommand(settings, program));
  options.job.mutable_command()->Assign(command.begin(), command.end());
  ASSIGN_OR_RETURN(const bool module, settings.Switch("module"));
  // A macro is filled in for each worker.
  const bool macro = absl::StrContains(program[0], "${");
  if (command.size() > program.size() && !module && !macro) options.script = program[0];
  RETURN_IF_ERROR(TakeRendezvousConf(settings, options));
  RETURN_IF_ERROR(TakeSize(settings, options.job));
  RETURN_IF_ERROR(TakeTimes(settings, options.job));
  RETURN_IF_ERROR(TakeRestarts(settings, options));
  RETURN_IF_ERROR(TakeWorkers(settings, options));
  RETURN_IF_ERROR(TakeOutput(settings, options));
  RETURN_IF_ERROR(TakeNode(settings, options));
  RETURN_IF_ERROR(ChooseName(settings, identity, program, options.job));
  if (identity.has_value()) RETURN_IF_ERROR(TakeIdentity(settings, *identity, options));
  FillSpecDefaults(options.job);
  if (options.adopt_timeout > absl::ZeroDuration() && options.job.restart().in_place()) {
    return absl::InvalidArgumentError(
        "--adopt-timeout and recovery in place (--in-place) do not go together: leave one out");
  }
  if (options.adopt_timeout > absl::ZeroDuration() && options.job.restart().standby()) {
    return absl::InvalidArgumentError(
        "--adopt-timeout and processes that stand by (--standby yes) do not go together: leave one "
        "out");
  }
  RETURN_IF_ERROR(ChooseEndpoint(settings, identity, options));
  return options;
}

}  // namespace cadre
