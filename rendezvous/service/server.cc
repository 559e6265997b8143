#include "rendezvous/service/server.h"

#include <grpcpp/grpcpp.h>
#include <sys/resource.h>

#include <chrono>
#include <functional>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/bearer_token.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/threads/repeating_thread.h"
#include "base/tokens/renewed_token.h"
#include "proto/control.grpc.pb.h"
#include "proto/rendezvous.grpc.pb.h"
#include "proto/store.grpc.pb.h"
#include "rendezvous/service/acceptor.h"
#include "rendezvous/service/admission.h"
#include "rendezvous/service/call_threads.h"
#include "rendezvous/service/calls.h"
#include "rendezvous/service/listening.h"
#include "rendezvous/service/node_stream.h"
#include "rendezvous/service/refusal_log.h"
#include "rendezvous/service/token_check.h"
#include "rpc/channels.h"
#include "rpc/status_details.h"
#include "rpc/tls/server_security.h"

namespace cadre::service {
namespace {

// Between two looks at the token and the TLS files.
constexpr std::chrono::seconds kRenewalInterval(1);

// The first byte of a TLS connection: its record's type.
constexpr char kTlsHandshake = 0x16;

// Asked first by every service: whether the caller may come in, and which core serves it.
class Gate {
 public:
  Gate(std::shared_ptr<host::CoreThread> core, std::string token, bool wants_certificate)
      : wants_certificate_(wants_certificate), token_(std::move(token)), core_(std::move(core)) {}

  void SetToken(std::string token) {
    const absl::MutexLock lock(&mutex_);
    token_ = std::move(token);
  }
  std::string token() const {
    const absl::MutexLock lock(&mutex_);
    return token_;
  }

  void Serve(std::shared_ptr<host::CoreThread> core) {
    const absl::MutexLock lock(&mutex_);
    core_ = std::move(core);
  }
  void Refuse(absl::Status why) {
    const absl::MutexLock lock(&mutex_);
    core_.reset();
    closed_ = std::move(why);
  }
  absl::StatusOr<Admitted> Pass(const grpc::ServerContext& context) const {
    Admitted admitted;
    ASSIGN_OR_RETURN(admitted.bearer, CheckToken(context, token()));
    RETURN_IF_ERROR(CheckCertificate(context, admitted.bearer));
    ASSIGN_OR_RETURN(admitted.core, Serving());
    RETURN_IF_ERROR(CheckServerOf(admitted.bearer, admitted.core->server_id()));
    admitted.token_ended = CheckEndOf(admitted.bearer, absl::Now());
    return admitted;
  }
  absl::StatusOr<std::shared_ptr<host::CoreThread>> Serving() const {
    const absl::MutexLock lock(&mutex_);
    if (core_ == nullptr) return closed_;
    return core_;
  }

 private:
  // The launcher of a part runs as the part's user, who must not have the node's key.
  absl::Status CheckCertificate(const grpc::ServerContext& context, const Bearer& bearer) const {
    if (!wants_certificate_ || bearer.kind == Bearer::Kind::kPart || rpc::HasCertificate(context)) {
      return absl::OkStatus();
    }
    return absl::UnauthenticatedError(
        "this server wants a certificate and none came: give yours with --tls-dir");
  }

  const bool wants_certificate_;
  mutable absl::Mutex mutex_;
  std::string token_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<host::CoreThread> core_ ABSL_GUARDED_BY(mutex_);
  absl::Status closed_ ABSL_GUARDED_BY(mutex_) =
      rpc::NotLeading(absl::StrCat(kInReserve, ": it has just started"));
};

// The token and the TLS files of a server, read anew. One thread.
class SecurityRenewal {
 public:
  // Both outlive it.
  SecurityRenewal(const ServerOptions& options, Gate* gate, rpc::ServerSecurity* security)
      : log_(options.log),
        has_files_(!options.security.tls_dir.empty()),
        token_(options.token, options.token_file),
        gate_(*gate),
        security_(*security) {}

  void Look() {
    const std::string now = token_.Current();
    const bool other_token = now != gate_.token();
    // Only a token makes another key.
    if (!other_token && !has_files_) return said_.clear();
    const absl::StatusOr<bool> renewed = security_.Renew(now);
    if (!renewed.ok()) {
      return Say(absl::StrCat("goes on with the token and certificates that it had: ",
                              renewed.status().message()));
    }
    if (other_token) gate_.SetToken(now);
    if (other_token || *renewed) {
      Say(other_token ? "has another token now; connections that are open stay"
                      : "has other certificates now; connections that are open stay");
    }
    said_.clear();
  }

 private:
  // Each state once.
  void Say(const std::string& line) {
    if (line != said_ && log_) log_(line);
    said_ = line;
  }

  const std::function<void(const std::string&)> log_;
  const bool has_files_;
  RenewedToken token_;
  Gate& gate_;
  rpc::ServerSecurity& security_;
  std::string said_;
};

absl::Status CheckExposure(const ServerOptions& options) {
  ASSIGN_OR_RETURN(const bool loopback, IsLoopback(options.host));
  if (loopback) return absl::OkStatus();
  const std::string reached =
      absl::StrCat("a server on ", options.host, " can be reached from other machines");
  if (options.token.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(reached, " and needs a token: give --token-file"));
  }
  const rpc::TransportSecurity& security = options.security;
  if (security.by_token || security.insecure || !security.tls_dir.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(reached, ", and ", rpc::kNoServerKey));
}

// So that callers can go over from clear text to TLS one by one.
bool ServesBoth(const rpc::TransportSecurity& security) {
  return security.insecure && security.by_token;
}

// Each connection is an open file.
void RaiseOpenFiles() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

struct Server::Impl {
  Impl(const ServerOptions& options, std::shared_ptr<host::CoreThread> core)
      : options(options),
        gate(std::move(core), options.token, !options.security.tls_dir.empty()),
        loads(options.caller_limits, options.log) {}

  ~Impl() {
    renewing.reset();
    // Before the threads end.
    if (server != nullptr) Shutdown(absl::ZeroDuration());
  }

  void Shutdown(absl::Duration drain) {
    acceptor->Stop();
    server->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(drain));
  }

  // False: gRPC does not begin.
  bool Begin() {
    grpc::ServerBuilder builder;
    rpc::SetServerArguments(builder);
    entrance = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        security->Credentials());
    if (ServesBoth(options.security)) {
      entrance_in_clear = builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
          grpc::InsecureServerCredentials());
    }
    builder.RegisterService(&rendezvous);
    builder.RegisterService(&store);
    builder.RegisterService(&control);
    threads = std::make_unique<CallThreads>(builder.AddCompletionQueue());
    server = builder.BuildAndStart();
    if (server == nullptr) return false;
    Serve();
    if (!options.token_file.empty() || !options.security.tls_dir.empty()) {
      renewal.emplace(options, &gate, security.get());
      renewing.emplace(kRenewalInterval, [this] { renewal->Look(); });
    }
    acceptor->Start([this](ScopedFd connection, char first) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters one;
      one.fd = connection.Release();
      const bool clear = entrance_in_clear != nullptr && first != kTlsHandshake;
      (clear ? entrance_in_clear : entrance)->HandleNewConnection(&one);
    });
    return true;
  }

  absl::StatusOr<Admitted> Admit(const grpc::ServerContext& call) {
    absl::StatusOr<Admitted> admitted = gate.Pass(call);
    const std::optional<Peer> peer = PeerOf(call.peer());
    if (admitted.ok() && peer.has_value()) acceptor->Admit(*peer);
    if (admitted.ok()) admitted->loads = &loads;
    if (absl::IsUnauthenticated(admitted.status())) {
      SayRefused(peer.has_value() ? peer->address : "a caller", admitted.status());
    }
    return admitted;
  }

  void SayRefused(const std::string& whom, const absl::Status& why) {
    if (!options.log) return;
    const absl::MutexLock lock(&refusals_mutex);
    const auto line = refusals.Line(MonoNow(), whom, std::string(why.message()));
    if (line.has_value()) options.log(*line);
  }

  void Serve() {
    ServeNodeStreams(rendezvous, *threads, admission,
                     options.keeps_nothing ? rpc::kServerEndsWithLauncher : rpc::kServerReturns);
    ServeStore(store, *threads, admission);
    ServeControl(control, *threads, admission);
    threads->Start();
  }

  const ServerOptions options;
  Gate gate;
  CallerLoads loads;
  absl::Mutex refusals_mutex;
  RefusalLog refusals ABSL_GUARDED_BY(refusals_mutex);
  const Admission admission = [this](const grpc::ServerContext& call) { return Admit(call); };
  v1::Rendezvous::AsyncService rendezvous;
  v1::Store::AsyncService store;
  v1::Control::AsyncService control;
  std::unique_ptr<rpc::ServerSecurity> security;
  std::optional<SecurityRenewal> renewal;
  // Where there is something that can be replaced.
  std::optional<RepeatingThread> renewing;
  std::unique_ptr<Acceptor> acceptor;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> entrance;
  // For who does not begin with a TLS handshake; null: all go through the other one.
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> entrance_in_clear;
  // Gone before the server is, which what is left in their queue belongs to.
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<CallThreads> threads;
};

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      host::CoreThread& core) {
  // Not ours to delete.
  return Start(options, std::shared_ptr<host::CoreThread>(std::shared_ptr<void>(), &core));
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      std::shared_ptr<host::CoreThread> core) {
  RETURN_IF_ERROR(CheckExposure(options));
  rpc::QuietGrpcLog();
  rpc::KeepGrpcUp();
  RaiseOpenFiles();
  auto impl = std::make_unique<Impl>(options, std::move(core));
  AcceptorOptions entrance;
  entrance.host = options.host;
  entrance.port = options.port;
  entrance.awaits_first_byte = ServesBoth(options.security);
  ASSIGN_OR_RETURN(impl->acceptor, Acceptor::Listen(entrance));
  ASSIGN_OR_RETURN(impl->security, rpc::ServerSecurity::Make(options.security, options.token));
  if (!impl->Begin()) {
    return absl::UnavailableError(absl::StrCat(
        "cannot serve at ", HostPort(options.host, options.port),
        options.security.tls_dir.empty() ? "" : "; check ca.pem, cert.pem and key.pem"));
  }
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() { Shutdown(absl::ZeroDuration()); }

int Server::port() const { return impl_->acceptor->port(); }

std::string Server::token() const { return impl_->gate.token(); }

void Server::Serve(std::shared_ptr<host::CoreThread> core) { impl_->gate.Serve(std::move(core)); }

absl::StatusOr<std::shared_ptr<host::CoreThread>> Server::Serving() const {
  return impl_->gate.Serving();
}

void Server::Refuse(absl::Status why) { impl_->gate.Refuse(std::move(why)); }

void Server::Shutdown(absl::Duration drain) { impl_->Shutdown(drain); }

}  // namespace cadre::service
