#include "launcher/attach/attach.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "agent/link/grpc_link.h"
#include "base/clock.h"
#include "base/duration.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/token.h"
#include "launcher/attach/launcher_links.h"
#include "launcher/attach/security.h"
#include "launcher/attach/server_state.h"
#include "launcher/environment/endpoint.h"
#include "launcher/environment/launch_board.h"
#include "launcher/environment/signals.h"
#include "launcher/slurm/slurm_commands.h"
#include "rendezvous/service/listening.h"
#include "rpc/channels.h"

namespace cadre::launcher {
namespace {

// The pause between two attempts to resolve a name, or to bind a port that is not free yet.
constexpr absl::Duration kRetryInterval = absl::Milliseconds(500);
// A Cadre server answers within milliseconds.
constexpr absl::Duration kAnswerTimeout = absl::Seconds(5);

bool HasNoStateDir(const RunOptions& options) {
  return options.state_dir.empty() || options.state_dir == kNoStateDir;
}

absl::StatusOr<std::unique_ptr<host::CoreThread>> StartCore(const RunOptions& options) {
  if (options.adopt_timeout > absl::ZeroDuration() && HasNoStateDir(options)) {
    return absl::InvalidArgumentError(
        "--adopt-timeout: this launcher serves its job itself, so the job's state is lost when it "
        "ends; add --state-dir DIR, or start 'cadre server' first");
  }
  CoreConfig config = host::NewCoreConfig();
  // This server ends with its launcher, which would end every other job that it accepted.
  config.only_job = options.job.name();
  // Launchers of another launch do not have its token.
  config.runs_once = !options.launch.empty();
  absl::StatusOr<log::OpenedLog> state = OpenState(options.state_dir, config);
  // ALREADY_EXISTS would mean that a server at the endpoint can be joined.
  if (absl::IsAlreadyExists(state.status())) {
    return absl::InvalidArgumentError(state.status().message());
  }
  RETURN_IF_ERROR(state.status());
  return std::make_unique<host::CoreThread>(config, nullptr, *std::move(state));
}

// An endpoint whose name has been resolved.
struct Candidate {
  std::string host;  // as the user gave it
  std::string name;
  absl::StatusOr<ResolvedEndpoint> at;
  // Set if `at` is loopback of this machine but other machines are to connect: the address at which
  // they reach it.
  std::string network_address = "";
};

std::string AnyAddress(absl::string_view own) {
  return absl::StrContains(own, ':') ? "::" : "0.0.0.0";
}

service::ServerOptions Listen(const RunOptions& options, const Candidate& candidate,
                              const FoundToken& token, const rpc::TransportSecurity& security,
                              bool shares_state) {
  service::ServerOptions server;
  server.host = candidate.network_address.empty() ? candidate.at->address
                                                  : AnyAddress(candidate.network_address);
  if (!options.bind_host.empty()) server.host = options.bind_host;
  server.port = candidate.at->port;
  server.token = token.token;
  server.token_file = token.file;
  server.security = ForServer(security, token);
  server.keeps_nothing = !shares_state && HasNoStateDir(options);
  return server;
}

// Serves at the endpoint; ALREADY_EXISTS if another process listens there.
absl::Status Serve(const RunOptions& options, const service::ServerOptions& listen,
                   Attachment& attachment) {
  // The port decides who serves, so it is checked before the state, which that server may be using.
  RETURN_IF_ERROR(service::CheckListen(listen.host, listen.port));
  ASSIGN_OR_RETURN(std::unique_ptr<host::CoreThread> core, StartCore(options));
  ASSIGN_OR_RETURN(attachment.server, service::Server::Start(listen, *core));
  attachment.core = std::move(core);
  attachment.link = MakeEmbeddedLink(*attachment.core);
  return absl::OkStatus();
}

// Starts a replica there, as a standby or the leader; the link finds the leader, which may be
// another server.
absl::Status ServeReplica(const RunOptions& options, const log::EtcdOptions& etcd,
                          const service::ServerOptions& listen, const std::string& address,
                          Attachment& attachment) {
  ASSIGN_OR_RETURN(attachment.server,
                   service::Server::Start(listen, std::shared_ptr<host::CoreThread>()));
  service::ReplicaOptions replica;
  replica.etcd = etcd;
  replica.address = address;
  replica.core = host::NewCoreConfig();
  replica.core.only_job = options.job.name();
  replica.core.runs_once = !options.launch.empty();
  ASSIGN_OR_RETURN(attachment.replica, service::Replica::Start(replica, *attachment.server));
  return absl::OkStatus();
}

// If the name of a Slurm node does not resolve, the address that Slurm knows is used.
Candidate ResolveCandidate(const RunOptions& options, const Endpoint& endpoint) {
  const Interruptible wait;
  Candidate candidate = {endpoint.host, service::HostPort(endpoint.host, endpoint.port),
                         Resolve(endpoint)};
  if (candidate.at.ok() || !options.names_are_slurms) return candidate;
  const std::string address = SlurmNodeAddress(options.slurm_aliases, endpoint.host);
  if (address.empty()) return candidate;
  return {endpoint.host, service::HostPort(address, endpoint.port),
          Resolve({address, endpoint.port})};
}

std::vector<Candidate> ResolveCandidates(const RunOptions& options) {
  std::vector<Candidate> candidates;
  for (const Endpoint& endpoint : options.endpoints)
    candidates.push_back(ResolveCandidate(options, endpoint));
  return candidates;
}

// Kubernetes pods have no name, not even on themselves, before their service knows them.
void WaitForName(const RunOptions& options, const std::function<void(const std::string&)>& say,
                 Candidate& candidate) {
  const absl::Duration timeout = FromProto(options.job.rendezvous().join_timeout());
  const MonoTime until = MonoNow() + timeout;
  if (candidate.at.ok() || !options.endpoint_comes_later) return;
  say(absl::StrCat(candidate.at.status().message(),
                   "; this node should serve the rendezvous there and retries for ",
                   ShortDuration(timeout)));
  while (!candidate.at.ok() && MonoNow() < until) {
    {
      const Interruptible wait;
      absl::SleepFor(kRetryInterval);
    }
    candidate = ResolveCandidate(options, options.endpoints[0]);
  }
}

// The address at which the second node reaches this one, the first; or the one of the default
// route. Empty: the others are on this machine.
std::string AddressForOtherNodes(const RunOptions& options, int port) {
  if (options.expected_nodes.size() > 1) {
    const absl::StatusOr<ResolvedEndpoint> other =
        ResolveCandidate(options, {options.expected_nodes[1], port}).at;
    if (other.ok() && other->loopback) return "";
    if (other.ok()) return AddressTowards(other->address, other->port);
  }
  return AddressTowardsOthers();
}

// A node that is told to serve does so, or reports why it cannot. If its name resolves to loopback
// there (Debian's 127.0.1.1 in /etc/hosts), the address at which the others reach it is used; so it
// is if the name is not this node's, or does not resolve, and the board can publish the address.
absl::Status UseOwnAddress(const RunOptions& options, bool by_board, Candidate& candidate) {
  const int port = options.endpoints[0].port;
  if (by_board && (!candidate.at.ok() || !candidate.at->here)) {
    const std::string own = AddressForOtherNodes(options, port);
    if (!own.empty()) candidate.at = Resolve({own, port});
  }
  RETURN_IF_ERROR(candidate.at.status());
  if (candidate.at->loopback && options.expected_nodes.size() > 1) {
    const std::string own = AddressForOtherNodes(options, port);
    if (!own.empty()) candidate.at->address = own;
    candidate.at->loopback = own.empty();
  }
  if (candidate.at->here) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "this node should serve the rendezvous at ", candidate.name, ", but ", candidate.at->address,
      " is not an address of this node; give every node the same --rdzv-endpoint HOST[:PORT], with "
      "an address of this node"));
}

// If the port is in use, another one is chosen for nodes that get it from the board.
absl::Status FindFreePort(const RunOptions& options, Candidate& candidate) {
  const std::string& host = options.bind_host.empty() ? candidate.at->address : options.bind_host;
  if (!absl::IsAlreadyExists(service::CheckListen(host, candidate.at->port))) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const service::Listening free, service::Listen(host, 0));
  candidate.at->port = free.port;
  candidate.name = service::HostPort(candidate.host, free.port);
  return absl::OkStatus();
}

// The name to which other nodes connect. A certificate is issued for a name, so with TLS they must
// use it.
std::string PublicName(const RunOptions& options, const Candidate& candidate) {
  return options.tls_dir.empty() || candidate.at->loopback
             ? service::HostPort(candidate.at->address, candidate.at->port)
             : candidate.name;
}

// Returns the server's endpoint on a node that does not serve. NOT_FOUND: the launch has ended.
absl::StatusOr<Endpoint> AwaitServerEndpoint(const RunOptions& options, const LaunchBoard& board,
                                             const std::function<void(const std::string&)>& say) {
  const Interruptible wait;
  ASSIGN_OR_RETURN(
      const std::string at,
      board.AwaitServer(FromProto(options.job.rendezvous().join_timeout()), options.node_name, [&] {
        say(absl::StrCat("waiting for ", options.endpoints[0].host,
                         " to publish the address of the rendezvous (", board.Where(),
                         "); the nodes must share the home directory, or be given --token-file"));
      }));
  return ParseEndpoint(at, options.endpoints[0].port);
}

// Many machines resolve their own name to loopback (Debian's 127.0.1.1), while all others resolve
// it to a network address. With a token, which the others must have too, the server listens on
// every address. Without one all nodes are assumed to be on this machine.
void ListenForOtherMachines(const RunOptions& options, Candidate& candidate) {
  const bool several = uint64_t{options.job.nodes().max()} + options.job.spares() > 1;
  if (!candidate.at.ok() || !candidate.at->loopback || SaysWhereItIs(candidate.host)) return;
  if (!several || options.token_file.empty() || options.serves.has_value()) return;
  candidate.network_address = AddressTowardsOthers();
  candidate.at->loopback = candidate.network_address.empty();
}

std::string WhyOnlyLocal(const Candidate& candidate) {
  if (!candidate.at->loopback || SaysWhereItIs(candidate.host)) return "";
  return absl::StrCat(candidate.host, " is ", candidate.at->address, " here");
}

// The launchers of one srun or mpirun share a token automatically, through the user's home
// directory.
absl::StatusOr<FoundToken> LaunchToken(const std::string& launch, Attachment& attachment) {
  const absl::StatusOr<LaunchBoard> board = LaunchBoard::Open(launch);
  absl::Status failed = board.status();
  if (board.ok()) {
    attachment.launch_token_file = board->TokenFile();
    absl::StatusOr<std::string> token = SharedToken(attachment.launch_token_file);
    if (token.ok()) return FoundToken{*std::move(token)};
    failed = token.status();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no token can be shared through the home directory: ", failed.message(),
                   "; make one with 'cadre token new FILE' and add --token-file FILE"));
}

absl::StatusOr<FoundToken> TokenFor(const RunOptions& options, Attachment& attachment) {
  const Endpoint& first = options.endpoints[0];
  if (options.endpoints.size() > 1 && options.token_file.empty()) {
    return absl::InvalidArgumentError(
        "several endpoints need a token that all of them know: make one with 'cadre token new "
        "FILE', give every node a copy, and add --token-file FILE");
  }
  if (!attachment.loopback && options.token_file.empty() && !options.launch.empty()) {
    return LaunchToken(options.launch, attachment);
  }
  return FindToken(options.token_file, first.host, first.port, attachment.loopback);
}

// The process that holds the port may release it; this node waits for that as long as the others of
// this job wait for it.
absl::Status ServeWhenFree(const RunOptions& options, const service::ServerOptions& listen,
                           const std::function<void(const std::string&)>& say,
                           Attachment& attachment) {
  const absl::Duration timeout = FromProto(options.job.rendezvous().join_timeout());
  const MonoTime until = MonoNow() + timeout;
  absl::Status served = Serve(options, listen, attachment);
  if (absl::IsAlreadyExists(served)) {
    say(absl::StrCat("port ", listen.port, " on ", listen.host,
                     " is in use; this node should serve the rendezvous there and retries for ",
                     ShortDuration(timeout)));
  }
  while (absl::IsAlreadyExists(served) && MonoNow() < until) {
    {
      const Interruptible wait;
      absl::SleepFor(kRetryInterval);
    }
    served = Serve(options, listen, attachment);
  }
  return served;
}

// The possible addresses of the server; on a node that is told to serve, its own.
absl::StatusOr<std::vector<Candidate>> FindCandidates(
    const RunOptions& options, const std::function<void(const std::string&)>& say,
    Attachment& attachment) {
  if (!options.launch.empty()) {
    absl::StatusOr<LaunchBoard> board = LaunchBoard::Open(options.launch);
    // Open() fails if there is no home directory to share. Then the nodes do without the board and
    // try the addresses in options.endpoints, which srun's or mpirun's environment names.
    if (board.ok()) attachment.board.emplace(*std::move(board));
  }
  const bool by_board = options.by_board && attachment.board.has_value();
  if (by_board && options.serves != true) {
    const absl::StatusOr<Endpoint> server = AwaitServerEndpoint(options, *attachment.board, say);
    if (server.ok()) return std::vector<Candidate>{ResolveCandidate(options, *server)};
    // There is no server any more; its old address is tried, so that the link reports the launch's
    // end.
    if (!absl::IsNotFound(server.status())) return server.status();
  }
  std::vector<Candidate> candidates = ResolveCandidates(options);
  if (options.serves == true) {
    WaitForName(options, say, candidates[0]);
    RETURN_IF_ERROR(UseOwnAddress(options, by_board, candidates[0]));
    if (by_board) RETURN_IF_ERROR(FindFreePort(options, candidates[0]));
  }
  for (Candidate& candidate : candidates) ListenForOtherMachines(options, candidate);
  return candidates;
}

// Whether a Cadre server answers there, of any user.
bool CadreServerAnswers(const agent::GrpcLinkOptions& to, absl::Duration timeout) {
  // Set by the first of the callbacks.
  struct Answer {
    std::atomic<bool> first{true};
    bool is_cadre = false;
    absl::Notification came;
    void Is(bool is) {
      if (!first.exchange(false)) return;
      is_cadre = is;
      came.Notify();
    }
  } answer;
  const std::unique_ptr<agent::ServerLink> link = agent::MakeGrpcLink(to);
  agent::LinkCallbacks callbacks;
  callbacks.on_up = [&](uint64_t) { answer.Is(true); };
  callbacks.on_message = [](const v1::ServerMessage&) {};
  callbacks.on_down = [&](const absl::Status& why) {
    // Another program's server, or one that is starting or ending.
    answer.Is(!absl::IsUnavailable(why) && !absl::IsFailedPrecondition(why) &&
              !absl::IsDeadlineExceeded(why));
  };
  link->Start(std::move(callbacks));
  answer.came.WaitForNotificationWithTimeout(timeout);
  link->Stop();
  return answer.is_cadre;
}

// Serves at an address of this machine, or returns ALREADY_EXISTS if another launcher does. If
// another program has the port, waits for it to be released.
absl::Status ServeOrJoin(const RunOptions& options, const service::ServerOptions& listen,
                         const agent::GrpcLinkOptions& link,
                         const std::function<void(const std::string&)>& say,
                         Attachment& attachment) {
  const absl::Duration timeout = FromProto(options.job.rendezvous().join_timeout());
  const MonoTime until = MonoNow() + timeout;
  const std::string taken = absl::StrCat("port ", listen.port, " on ", listen.host,
                                         " is in use by a process that is not a cadre server");
  for (bool said = false;; said = true) {
    const absl::Status served = Serve(options, listen, attachment);
    if (!absl::IsAlreadyExists(served)) return served;
    if (CadreServerAnswers(link, std::min(timeout, kAnswerTimeout))) return served;
    if (MonoNow() >= until) {
      return absl::UnavailableError(
          absl::StrCat(taken, ", and did not become free within ", ShortDuration(timeout)));
    }
    if (!said) say(absl::StrCat(taken, "; retrying for ", ShortDuration(timeout)));
    const Interruptible wait;
    absl::SleepFor(kRetryInterval);
  }
}

absl::Status AttachStandalone(const RunOptions& options, Attachment& attachment) {
  ASSIGN_OR_RETURN(attachment.core, StartCore(options));
  attachment.link = MakeEmbeddedLink(*attachment.core);
  if (options.http.empty() || options.token_file.empty()) return absl::OkStatus();
  // Nodes need no token here, but the dashboard's readers do.
  ASSIGN_OR_RETURN(const FoundToken token,
                   FindToken(options.token_file, attachment.address, 0, attachment.loopback));
  attachment.token = token.token;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Attachment> Attach(const RunOptions& options,
                                  const std::optional<log::EtcdOptions>& etcd,
                                  const std::function<void(const std::string&)>& say) {
  Attachment attachment;
  attachment.address = "127.0.0.1";
  if (options.endpoints.empty()) {
    RETURN_IF_ERROR(AttachStandalone(options, attachment));
    return attachment;
  }
  rpc::QuietGrpcLog();
  agent::GrpcLinkOptions link;
  std::string routed;
  ASSIGN_OR_RETURN(std::vector<Candidate> candidates, FindCandidates(options, say, attachment));
  for (const Candidate& candidate : candidates) {
    absl::StrAppend(&attachment.endpoint, attachment.endpoint.empty() ? "" : ",", candidate.name);
    attachment.loopback = attachment.loopback && candidate.at.ok() && candidate.at->loopback;
    if (candidate.at.ok() && !candidate.at->loopback && routed.empty()) {
      routed = candidate.network_address.empty()
                   ? AddressTowards(candidate.at->address, candidate.at->port)
                   : candidate.network_address;
    }
    // For an address of this machine the server's own address is used; any other name is resolved
    // again at every attempt, because it may move.
    link.endpoints.push_back(candidate.at.ok() && candidate.at->here
                                 ? service::HostPort(candidate.at->address, candidate.at->port)
                                 : candidate.name);
  }
  if (!routed.empty()) attachment.address = routed;
  ASSIGN_OR_RETURN(const FoundToken token, TokenFor(options, attachment));
  ASSIGN_OR_RETURN(link.security,
                   SecurityOf(options.tls_dir, options.insecure, token, attachment.loopback));
  // The launcher of an allocation runs as the job's user and must not have the node's certificate.
  link.security.nameless = options.allocation != 0;
  if (!options.token_file.empty()) attachment.token = token.token;
  if (options.serves == true && attachment.board.has_value()) attachment.board->ForgetEarlierRun();
  link.token = token.token;
  link.token_file = token.file;
  attachment.insecure = options.insecure && !attachment.loopback;
  for (const Candidate& candidate : candidates) {
    // Without shared state two servers would gather nodes independently.
    if (options.serves == false) break;
    if (!candidate.at.ok() || !candidate.at->here || (candidates.size() > 1 && !etcd.has_value()))
      continue;
    const service::ServerOptions listen =
        Listen(options, candidate, token, link.security, etcd.has_value());
    const absl::Status served =
        etcd.has_value()         ? ServeReplica(options, *etcd, listen, candidate.name, attachment)
        : options.serves == true ? ServeWhenFree(options, listen, say, attachment)
                                 : ServeOrJoin(options, listen, link, say, attachment);
    if (served.ok()) {
      attachment.serves = candidate.name;
      attachment.why_only_local = WhyOnlyLocal(candidate);
      // If this node was not told to serve, an earlier run's files are kept until it does.
      if (attachment.board.has_value()) attachment.board->ForgetEarlierRun();
      if (options.by_board && attachment.board.has_value()) {
        RETURN_IF_ERROR(attachment.board->PublishAddress(PublicName(options, candidate)));
      }
      break;
    }
    // A node that was told to serve must not join another program or job that has the port.
    if (!absl::IsAlreadyExists(served) || options.serves == true) return served;
  }
  if (attachment.link != nullptr) return attachment;
  attachment.link = agent::MakeGrpcLink(std::move(link));
  if (attachment.board.has_value()) {
    attachment.link =
        MakeLaunchLink(std::move(attachment.link), *attachment.board,
                       {options.node_name, options.job.name(), options.serves == false, say});
  }
  return attachment;
}

}  // namespace cadre::launcher
