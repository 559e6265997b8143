#include "launcher/flags/rendezvous_flags.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/duration.h"
#include "base/status_macros.h"
#include "launcher/environment/endpoint.h"
#include "launcher/flags/take.h"
#include "launcher/spec/scalars.h"

namespace cadre::launcher {
namespace {

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

// Without quotes around it, which a shell would have taken away and other starters leave.
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
  // "cadre" is what a torchrun that is started here may be told by the same variable.
  return Take(
      settings, "rdzv-backend",
      OneOf<bool>(
          {{"c10d", true}, {"static", true}, {"cadre", true}, {"etcd", false}, {"etcd-v2", false}}),
      [&](bool meant) {
        if (!meant) {
          options.notices.push_back(
              "--rdzv-backend etcd: no etcd is needed; the endpoint's owner serves it");
        }
      });
}

// "2", or "1 to 3".
std::string NodesAskedFor(const RunOptions& options) {
  const v1::NodeRange& nodes = options.job.nodes();
  return nodes.min() == nodes.max() ? absl::StrCat(nodes.min())
                                    : absl::StrCat(nodes.min(), " to ", nodes.max());
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
      "the job asks for ", NodesAskedFor(options), nodes.max() == 1 ? " node" : " nodes", ", but ",
      identity.source, " runs this on ", identity.nodes,
      "; make them agree, or leave the job's number out"));
}

// A node that would be alone in a job of its own, though whoever started it says that there are
// more.
absl::Status CheckPlace(const Identity& identity, const RunOptions& options) {
  const v1::NodeRange& nodes = options.job.nodes();
  if (nodes.min() == 0 && identity.nodes == 0 && !identity.unsaid.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(identity.unsaid,
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

// "host:0", in which torchrun has any free port.
bool IsAnyPort(absl::string_view endpoint) {
  return absl::EndsWith(endpoint, "]:0") ||
         (absl::EndsWith(endpoint, ":0") && endpoint.find(':') == endpoint.size() - 2);
}

// A node that waits in reserve may have a rank beyond those that take part.
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
    return absl::InvalidArgumentError(absl::StrCat("--standalone is one node, but ",
                                                   options.job.nodes().min(),
                                                   " are asked for; leave one of them out"));
  }
  options.job.mutable_nodes()->set_max(1);
  for (const char* flag : {"token-file", "tls-dir", "insecure", "rdzv-endpoint"}) {
    const std::optional<Setting> idle = settings.Get(flag);
    // The dashboard has a use for them.
    if (!idle.has_value() || !options.http.empty()) continue;
    // A variable is set once for all that is run.
    if (!absl::StartsWith(idle->origin, "--")) continue;
    options.notices.push_back(
        absl::StrCat(idle->origin, " has no effect here: --standalone listens for nobody"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status TakeRendezvousFlags(const Settings& settings, RunOptions& options) {
  RETURN_IF_ERROR(TakeRendezvousConf(settings, options));
  return TakeNode(settings, options);
}

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
    // Several tasks per node were asked for, which means as many workers.
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

absl::Status ChooseEndpoint(const Settings& settings, const std::optional<Identity>& identity,
                            RunOptions& options) {
  ASSIGN_OR_RETURN(const bool standalone, settings.Switch("standalone"));
  if (standalone) return StandAlone(settings, options);
  RETURN_IF_ERROR(CheckNodeRank(settings, options));
  const std::optional<Setting> given = settings.Get("rdzv-endpoint");
  const bool several = options.job.nodes().max() > 1;
  if (given.has_value()) {
    // Nobody else comes to such a job of one node, so it needs no port at all.
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
    if (identity.has_value() && identity->part != 0) options.serves = identity->serves;
    if (options.endpoints.size() > 1 && !settings.Get("etcd").has_value()) {
      options.notices.push_back(
          "several endpoints and no --etcd: this node joins the server that leads, and serves "
          "none");
    }
    return absl::OkStatus();
  }
  if (!several && !identity.has_value()) {
    ASSIGN_OR_RETURN(const std::optional<uint32_t> allocated,
                     NumberIn(settings.environment(), "SLURM_NNODES"));
    if (allocated.value_or(1) > 1 && !settings.Get("nnodes").has_value()) {
      options.notices.push_back(absl::StrCat(
          "SLURM_NNODES is ", *allocated,
          ", but this is no step of that job: it runs on this node alone; put 'srun "
          "--ntasks-per-node=1' before 'cadre run' for all of them, or add --nnodes 1"));
    }
    return absl::OkStatus();
  }
  if (!options.master_addr.empty() && several) {
    options.endpoints = {
        Endpoint{options.master_addr,
                 options.master_port == 0 ? 29500 : static_cast<int>(options.master_port)}};
    // The rendezvous has that port now; workers get one that is free.
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
    // A token of the user's own is for nodes that share no home directory.
    options.by_board = !identity->launch.empty() &&
                       (options.token_file.empty() || identity->tasks > 0) &&
                       !settings.Get("etcd").has_value();
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      NodesAskedFor(options), " nodes are asked for, but not where they meet",
      identity.has_value() ? absl::StrCat(" (", identity->source, " does not say)") : "",
      "; add --rdzv-endpoint HOST[:PORT], the same on every node"));
}

}  // namespace cadre::launcher
