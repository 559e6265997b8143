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
#include "launcher/attach/embedded_link.h"
#include "launcher/attach/launch_link.h"
#include "launcher/attach/loopback_token.h"
#include "launcher/attach/state_directory.h"
#include "launcher/environment/endpoint.h"
#include "launcher/environment/interruptible.h"
#include "launcher/environment/launch_board.h"
#include "launcher/slurm/node_address.h"
#include "rendezvous/service/listening.h"
#include "rpc/channels.h"

namespace cadre::launcher {
namespace {

// Between two questions for a name that is not there yet, or a port that is not free yet.
constexpr absl::Duration kPause = absl::Milliseconds(500);
// A server of ours answers within milliseconds.
constexpr absl::Duration kAnswerTimeout = absl::Seconds(5);

bool KeepsNothing(const RunOptions& options) {
  return options.state_dir.empty() || options.state_dir == kNoStateDir;
}

absl::StatusOr<std::unique_ptr<host::CoreThread>> StartCore(const RunOptions& options) {
  if (options.adopt_timeout > absl::ZeroDuration() && KeepsNothing(options)) {
    return absl::InvalidArgumentError(
        "--adopt-timeout: this launcher serves its job, and what it knows of it dies with it; add "
        "--state-dir DIR, or start 'cadre server' first");
  }
  CoreConfig config = host::NewCoreConfig();
  // This server ends with its launcher, and so would every other job that it took in.
  config.only_job = options.job.name();
  // Nobody of another launch has its token.
  config.runs_once = !options.launch.empty();
  absl::StatusOr<log::OpenedLog> state = OpenState(options.state_dir, config);
  // ALREADY_EXISTS would mean that somebody serves at the endpoint, and that one can be joined.
  if (absl::IsAlreadyExists(state.status())) {
    return absl::InvalidArgumentError(state.status().message());
  }
  RETURN_IF_ERROR(state.status());
  return std::make_unique<host::CoreThread>(config, nullptr, *std::move(state));
}

// An endpoint that has been looked up.
struct Candidate {
  std::string host;  // as the user gave it
  std::string name;
  absl::StatusOr<ResolvedEndpoint> at;
  // Where `at` is this machine's loopback and others are to come all the same: the address under
  // which they reach it.
  std::string own = "";
};

std::string Everywhere(absl::string_view own) {
  return absl::StrContains(own, ':') ? "::" : "0.0.0.0";
}

service::ServerOptions Listen(const RunOptions& options, const Candidate& candidate,
                              const FoundToken& token, const rpc::TransportSecurity& security,
                              bool shares_state) {
  service::ServerOptions server;
  server.host = candidate.own.empty() ? candidate.at->address : Everywhere(candidate.own);
  if (!options.bind_host.empty()) server.host = options.bind_host;
  server.port = candidate.at->port;
  server.token = token.token;
  server.token_file = token.file;
  server.security = ForServer(security, token);
  server.keeps_nothing = !shares_state && KeepsNothing(options);
  return server;
}

// Serves at the endpoint; ALREADY_EXISTS when somebody does.
absl::Status Serve(const RunOptions& options, const service::ServerOptions& listen,
                   Attachment& attachment) {
  // Whoever has the port serves: it is looked at before the state is, which may be in use with it.
  RETURN_IF_ERROR(service::CheckListen(listen.host, listen.port));
  ASSIGN_OR_RETURN(std::unique_ptr<host::CoreThread> core, StartCore(options));
  ASSIGN_OR_RETURN(attachment.server, service::Server::Start(listen, *core));
  attachment.core = std::move(core);
  attachment.link = MakeEmbeddedLink(*attachment.core);
  return absl::OkStatus();
}

// Stands in reserve there, or leads; the link finds out who does, so it may be to another one.
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

// The address that Slurm has for a node stands for its name where that does not resolve.
Candidate LookUp(const RunOptions& options, const Endpoint& endpoint) {
  const Interruptible wait;
  Candidate candidate = {endpoint.host, service::HostPort(endpoint.host, endpoint.port),
                         Resolve(endpoint)};
  if (candidate.at.ok() || !options.names_are_slurms) return candidate;
  const std::string address = SlurmNodeAddress(options.slurm_aliases, endpoint.host);
  if (address.empty()) return candidate;
  return {endpoint.host, service::HostPort(address, endpoint.port),
          Resolve({address, endpoint.port})};
}

std::vector<Candidate> LookUp(const RunOptions& options) {
  std::vector<Candidate> candidates;
  for (const Endpoint& endpoint : options.endpoints)
    candidates.push_back(LookUp(options, endpoint));
  return candidates;
}

// Kubernetes' pods have no name before their service knows them, not to themselves either.
void AwaitName(const RunOptions& options, const std::function<void(const std::string&)>& say,
               Candidate& candidate) {
  const absl::Duration patience = FromProto(options.job.rendezvous().join_timeout());
  const MonoTime until = MonoNow() + patience;
  if (candidate.at.ok() || !options.endpoint_comes_later) return;
  say(absl::StrCat(candidate.at.status().message(),
                   "; this node is to serve there, and tries again for ", ShortDuration(patience)));
  while (!candidate.at.ok() && MonoNow() < until) {
    {
      const Interruptible wait;
      absl::SleepFor(kPause);
    }
    candidate = LookUp(options, options.endpoints[0]);
  }
}

// The address under which the second node reaches this one, the first; or else by the default
// route. Empty: it does not leave this machine.
std::string AddressForTheOthers(const RunOptions& options, int port) {
  if (options.expected_nodes.size() > 1) {
    const absl::StatusOr<ResolvedEndpoint> other =
        LookUp(options, {options.expected_nodes[1], port}).at;
    if (other.ok() && other->loopback) return "";
    if (other.ok()) return AddressTowards(other->address, other->port);
  }
  return AddressTowardsOthers();
}

// A node that is told to serve does so, or it says why it cannot. Where the name of the first node
// is looked up as a loopback address there (Debian's 127.0.1.1 in /etc/hosts), it is reached under
// another one; so it is where it tells the others which, and its name is not its own.
absl::Status ServeHere(const RunOptions& options, bool by_board, Candidate& candidate) {
  const int port = options.endpoints[0].port;
  if (by_board && (!candidate.at.ok() || !candidate.at->here)) {
    const std::string own = AddressForTheOthers(options, port);
    if (!own.empty()) candidate.at = Resolve({own, port});
  }
  RETURN_IF_ERROR(candidate.at.status());
  if (candidate.at->loopback && options.expected_nodes.size() > 1) {
    const std::string own = AddressForTheOthers(options, port);
    if (!own.empty()) candidate.at->address = own;
    candidate.at->loopback = own.empty();
  }
  if (candidate.at->here) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "this node is to serve the rendezvous as ", candidate.name, ", but ", candidate.at->address,
      " is no address of it; name one of its own, the same on every node: --rdzv-endpoint "
      "HOST[:PORT]"));
}

// Where somebody has the port already, another one does for nodes that are told which.
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

// As the others are to connect to it. A certificate is for a name, which all then have to know.
std::string PublicName(const RunOptions& options, const Candidate& candidate) {
  return options.tls_dir.empty() || candidate.at->loopback
             ? service::HostPort(candidate.at->address, candidate.at->port)
             : candidate.name;
}

// By a node that does not serve: where the one that does is. NOT_FOUND: the launch has ended.
absl::StatusOr<Endpoint> ServerOf(const RunOptions& options, const LaunchBoard& board,
                                  const std::function<void(const std::string&)>& say) {
  const Interruptible wait;
  ASSIGN_OR_RETURN(
      const std::string at,
      board.AwaitServer(FromProto(options.job.rendezvous().join_timeout()), options.node_name, [&] {
        say(absl::StrCat("waiting for ", options.endpoints[0].host,
                         " to say where it serves the rendezvous (", board.Where(),
                         "); the nodes must share the home directory, or be given --token-file"));
      }));
  return ParseEndpoint(at, options.endpoints[0].port);
}

// Many a machine looks its own name up as a loopback address (Debian's 127.0.1.1), and all others
// as one of the network. With a token, which those must have been given, it is open to them:
// listens on every address. Without one all nodes are taken to be here.
void OpenToOthers(const RunOptions& options, Candidate& candidate) {
  const bool several = uint64_t{options.job.nodes().max()} + options.job.spares() > 1;
  if (!candidate.at.ok() || !candidate.at->loopback || SaysWhereItIs(candidate.host)) return;
  if (!several || options.token_file.empty() || options.serves.has_value()) return;
  candidate.own = AddressTowardsOthers();
  candidate.at->loopback = candidate.own.empty();
}

std::string OnlyHere(const Candidate& candidate) {
  if (!candidate.at->loopback || SaysWhereItIs(candidate.host)) return "";
  return absl::StrCat(candidate.host, " is ", candidate.at->address, " here");
}

// The launchers of one srun or mpirun share a token by themselves, through the user's home
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

// Whoever has the port may let it go: the others of this job wait as long as that for this node.
absl::Status ServeWhenFree(const RunOptions& options, const service::ServerOptions& listen,
                           const std::function<void(const std::string&)>& say,
                           Attachment& attachment) {
  const absl::Duration patience = FromProto(options.job.rendezvous().join_timeout());
  const MonoTime until = MonoNow() + patience;
  absl::Status served = Serve(options, listen, attachment);
  if (absl::IsAlreadyExists(served)) {
    say(absl::StrCat("port ", listen.port, " on ", listen.host,
                     " is in use; this node is to serve there, and tries again for ",
                     ShortDuration(patience)));
  }
  while (absl::IsAlreadyExists(served) && MonoNow() < until) {
    {
      const Interruptible wait;
      absl::SleepFor(kPause);
    }
    served = Serve(options, listen, attachment);
  }
  return served;
}

// Where a server may be, which on a node that is to serve is known to be its own.
absl::StatusOr<std::vector<Candidate>> FindCandidates(
    const RunOptions& options, const std::function<void(const std::string&)>& say,
    Attachment& attachment) {
  if (!options.launch.empty()) {
    absl::StatusOr<LaunchBoard> board = LaunchBoard::Open(options.launch);
    // Without a home directory all go by what the launch says of itself.
    if (board.ok()) attachment.board.emplace(*std::move(board));
  }
  const bool by_board = options.by_board && attachment.board.has_value();
  if (by_board && options.serves != true) {
    const absl::StatusOr<Endpoint> server = ServerOf(options, *attachment.board, say);
    if (server.ok()) return std::vector<Candidate>{LookUp(options, *server)};
    // Where it would have been there is nobody now, for which the launch's end is looked for.
    if (!absl::IsNotFound(server.status())) return server.status();
  }
  std::vector<Candidate> candidates = LookUp(options);
  if (options.serves == true) {
    AwaitName(options, say, candidates[0]);
    RETURN_IF_ERROR(ServeHere(options, by_board, candidates[0]));
    if (by_board) RETURN_IF_ERROR(FindFreePort(options, candidates[0]));
  }
  for (Candidate& candidate : candidates) OpenToOthers(options, candidate);
  return candidates;
}

// Whether a server of Cadre answers there, whosever it is.
bool OursAnswers(const agent::GrpcLinkOptions& to, absl::Duration patience) {
  // By whichever callback comes first.
  struct Answer {
    std::atomic<bool> first{true};
    bool ours = false;
    absl::Notification came;
    void Is(bool is) {
      if (!first.exchange(false)) return;
      ours = is;
      came.Notify();
    }
  } answer;
  const std::unique_ptr<agent::ServerLink> link = agent::MakeGrpcLink(to);
  agent::LinkCallbacks callbacks;
  callbacks.on_up = [&](uint64_t) { answer.Is(true); };
  callbacks.on_message = [](const v1::ServerMessage&) {};
  callbacks.on_down = [&](const absl::Status& why) {
    // A stranger's, or one that is about to serve or to end.
    answer.Is(!absl::IsUnavailable(why) && !absl::IsFailedPrecondition(why) &&
              !absl::IsDeadlineExceeded(why));
  };
  link->Start(std::move(callbacks));
  answer.came.WaitForNotificationWithTimeout(patience);
  link->Stop();
  return answer.ours;
}

// Serves at an address of this machine, or finds that another launcher does (ALREADY_EXISTS). What
// has the port and is no server of Cadre may let it go.
absl::Status ServeOrJoin(const RunOptions& options, const service::ServerOptions& listen,
                         const agent::GrpcLinkOptions& link,
                         const std::function<void(const std::string&)>& say,
                         Attachment& attachment) {
  const absl::Duration patience = FromProto(options.job.rendezvous().join_timeout());
  const MonoTime until = MonoNow() + patience;
  const std::string taken = absl::StrCat("port ", listen.port, " on ", listen.host,
                                         " is in use by what is no cadre server");
  for (bool said = false;; said = true) {
    const absl::Status served = Serve(options, listen, attachment);
    if (!absl::IsAlreadyExists(served)) return served;
    if (OursAnswers(link, std::min(patience, kAnswerTimeout))) return served;
    if (MonoNow() >= until) {
      return absl::UnavailableError(
          absl::StrCat(taken, ", and was not free within ", ShortDuration(patience)));
    }
    if (!said) say(absl::StrCat(taken, "; trying again for ", ShortDuration(patience)));
    const Interruptible wait;
    absl::SleepFor(kPause);
  }
}

absl::Status StandAlone(const RunOptions& options, Attachment& attachment) {
  ASSIGN_OR_RETURN(attachment.core, StartCore(options));
  attachment.link = MakeEmbeddedLink(*attachment.core);
  if (options.http.empty() || options.token_file.empty()) return absl::OkStatus();
  // Nodes need none, the dashboard's readers do.
  ASSIGN_OR_RETURN(const FoundToken token,
                   FindToken(options.token_file, attachment.address, 0, attachment.loopback));
  attachment.token = token.token;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<FoundToken> FindToken(const std::string& token_file, const std::string& host,
                                     int port, bool loopback) {
  if (!token_file.empty()) {
    const bool is_file = token_file != "-";
    absl::StatusOr<std::string> token = [&] {
      const Interruptible wait;
      return is_file ? ReadTokenFile(token_file) : ReadTokenFrom(STDIN_FILENO);
    }();
    if (token.ok()) return FoundToken{*std::move(token), is_file ? token_file : ""};
    return absl::InvalidArgumentError(absl::StrCat("--token-file: ", token.status().message()));
  }
  if (loopback) {
    ASSIGN_OR_RETURN(std::string token, LoopbackToken(port));
    return FoundToken{std::move(token)};
  }
  return absl::InvalidArgumentError(absl::StrCat(
      host,
      " is not on this machine's loopback, so a token is needed: make one with 'cadre token "
      "new FILE', give every node a copy, and add --token-file FILE"));
}

absl::StatusOr<Attachment> Attach(const RunOptions& options,
                                  const std::optional<log::EtcdOptions>& etcd,
                                  const std::function<void(const std::string&)>& say) {
  Attachment attachment;
  attachment.address = "127.0.0.1";
  if (options.endpoints.empty()) {
    RETURN_IF_ERROR(StandAlone(options, attachment));
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
      routed = candidate.own.empty() ? AddressTowards(candidate.at->address, candidate.at->port)
                                     : candidate.own;
    }
    // An address of this machine is named as the server was told it; any other name is looked up
    // again with every attempt, because it may move.
    link.endpoints.push_back(candidate.at.ok() && candidate.at->here
                                 ? service::HostPort(candidate.at->address, candidate.at->port)
                                 : candidate.name);
  }
  if (!routed.empty()) attachment.address = routed;
  ASSIGN_OR_RETURN(const FoundToken token, TokenFor(options, attachment));
  ASSIGN_OR_RETURN(link.security,
                   SecurityOf(options.tls_dir, options.insecure, token, attachment.loopback));
  // It runs as the job's user, without the node's own certificate.
  link.security.nameless = options.part != 0;
  if (!options.token_file.empty()) attachment.token = token.token;
  if (options.serves == true && attachment.board.has_value()) attachment.board->BeginAnew();
  link.token = token.token;
  link.token_file = token.file;
  attachment.insecure = options.insecure && !attachment.loopback;
  for (const Candidate& candidate : candidates) {
    // Without a shared state two that serve would each gather nodes of their own.
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
      attachment.only_here = OnlyHere(candidate);
      // Where nobody had told it to serve, what an earlier run has left stands until it does.
      if (attachment.board.has_value()) attachment.board->BeginAnew();
      if (options.by_board && attachment.board.has_value()) {
        RETURN_IF_ERROR(attachment.board->Serves(PublicName(options, candidate)));
      }
      break;
    }
    // A node that was told to serve must not join a stranger who has the port.
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
