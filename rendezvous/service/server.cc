#include "rendezvous/service/server.h"

#include <grpcpp/grpcpp.h>
#include <sys/resource.h>

#include <chrono>
#include <functional>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/threads/repeating_thread.h"
#include "base/tokens/renewed_token.h"
#include "proto/control.grpc.pb.h"
#include "proto/rendezvous.grpc.pb.h"
#include "proto/store.grpc.pb.h"
#include "rendezvous/service/acceptor.h"
#include "rendezvous/service/admission.h"
#include "rendezvous/service/calls.h"
#include "rendezvous/service/listening.h"
#include "rendezvous/service/node_stream.h"
#include "rpc/channels.h"
#include "rpc/status_details.h"
#include "rpc/tls/credentials.h"

namespace cadre::service {
namespace {

// The interval between two reads of the token and the TLS files.
constexpr std::chrono::seconds kRenewalInterval(1);

// The first byte of a TLS connection, its record type.
constexpr char kTlsHandshake = 0x16;

// Logs refused callers. Thread safe.
class Refusals {
 public:
  explicit Refusals(std::function<void(const std::string&)> log) : log_(std::move(log)) {}

  void Log(const std::string& address, const absl::Status& why) {
    if (!log_) return;
    const absl::MutexLock lock(&mutex_);
    const auto line = lines_.Line(MonoNow(), address, std::string(why.message()));
    if (line.has_value()) log_(*line);
  }

 private:
  const std::function<void(const std::string&)> log_;
  absl::Mutex mutex_;
  RefusalLog lines_ ABSL_GUARDED_BY(mutex_);
};

// Reads a server's token and TLS files again. One thread.
class SecurityRenewal {
 public:
  // `admissions` and `security` must outlive it.
  SecurityRenewal(const ServerOptions& options, AdmissionControl* admissions,
                  rpc::ServerSecurity* security)
      : log_(options.log),
        has_files_(!options.security.tls_dir.empty()),
        token_(options.token, options.token_file),
        admissions_(*admissions),
        security_(*security) {}

  void Renew() {
    const std::string token = token_.Current();
    const bool other_token = token != admissions_.token();
    // Without TLS files the key changes only with the token.
    if (!other_token && !has_files_) return last_logged_.clear();
    const absl::StatusOr<bool> renewed = security_.Renew(token);
    if (!renewed.ok()) {
      return LogOnce(absl::StrCat("the server keeps its token and certificates: ",
                                  renewed.status().message()));
    }
    if (other_token) admissions_.SetToken(token);
    if (other_token || *renewed) {
      LogOnce(other_token ? "the server has a new token now; open connections stay"
                          : "the server has new certificates now; open connections stay");
    }
    last_logged_.clear();
  }

 private:
  // Logs a line that the last call did not log.
  void LogOnce(const std::string& line) {
    if (line != last_logged_ && log_) log_(line);
    last_logged_ = line;
  }

  const std::function<void(const std::string&)> log_;
  const bool has_files_;
  RenewedToken token_;
  AdmissionControl& admissions_;
  rpc::ServerSecurity& security_;
  std::string last_logged_;
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

// Serves clear text and TLS, so that clients can change over to TLS one by one.
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
        admissions(std::move(core), options.token, !options.security.tls_dir.empty()),
        loads(options.caller_limits, options.log) {}

  ~Impl() {
    renewing.reset();
    // The server must be shut down before the threads end.
    if (server != nullptr) Shutdown(absl::ZeroDuration());
  }

  void Shutdown(absl::Duration drain) {
    acceptor->Stop();
    server->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(drain));
  }

  // Returns false if gRPC cannot start.
  bool Begin() {
    grpc::ServerBuilder builder;
    rpc::SetServerArguments(builder);
    connections = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        security->Credentials());
    if (ServesBoth(options.security)) {
      clear_text_connections = builder.experimental().AddExternalConnectionAcceptor(
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
      renewal.emplace(options, &admissions, security.get());
      renewing.emplace(kRenewalInterval, [this] { renewal->Renew(); });
    }
    acceptor->Start([this](ScopedFd connection, char first) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters one;
      one.fd = connection.Release();
      const bool clear = clear_text_connections != nullptr && first != kTlsHandshake;
      (clear ? clear_text_connections : connections)->HandleNewConnection(&one);
    });
    return true;
  }

  absl::StatusOr<Admitted> Admit(const grpc::ServerContext& call) {
    absl::StatusOr<Admitted> admitted = admissions.Admit(call);
    const std::optional<Peer> peer = PeerOf(call.peer());
    if (admitted.ok()) {
      admitted->loads = &loads;
      admitted->traffic = loads.TrafficOf(admitted->bearer);
      if (peer.has_value()) acceptor->Admit(*peer, admitted->traffic);
    } else if (absl::IsUnauthenticated(admitted.status())) {
      if (peer.has_value()) acceptor->Refuse(*peer);
      refusals->Log(peer.has_value() ? peer->address : "a caller", admitted.status());
    }
    return admitted;
  }

  void Serve() {
    ServeNodeStreams(rendezvous, *threads, admission,
                     options.keeps_nothing ? rpc::kServerEndsWithLauncher : rpc::kServerReturns);
    ServeStore(store, *threads, admission);
    ServeControl(control, *threads, admission, options.accounting.get());
    threads->Start();
  }

  const ServerOptions options;
  AdmissionControl admissions;
  CallerLoads loads;
  const std::shared_ptr<Refusals> refusals = std::make_shared<Refusals>(options.log);
  const Admission admission = [this](const grpc::ServerContext& call) { return Admit(call); };
  v1::Rendezvous::AsyncService rendezvous;
  v1::Store::AsyncService store;
  v1::Control::AsyncService control;
  std::unique_ptr<rpc::ServerSecurity> security;
  std::optional<SecurityRenewal> renewal;
  // Set if there are files that can be replaced.
  std::optional<RepeatingThread> renewing;
  std::unique_ptr<Acceptor> acceptor;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> connections;
  // For connections that do not begin with a TLS handshake; null: all use `connections`.
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> clear_text_connections;
  // Destroyed after `threads`: the operations that are left in their queue belong to it.
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<CallThreads> threads;
};

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      host::CoreThread& core) {
  // The caller owns the core.
  return Start(options, std::shared_ptr<host::CoreThread>(std::shared_ptr<void>(), &core));
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      std::shared_ptr<host::CoreThread> core) {
  RETURN_IF_ERROR(CheckExposure(options));
  rpc::QuietGrpcLog();
  rpc::KeepGrpcUp();
  RaiseOpenFiles();
  auto impl = std::make_unique<Impl>(options, std::move(core));
  AcceptorOptions acceptor;
  acceptor.host = options.host;
  acceptor.port = options.port;
  // A weak pointer, because gRPC may close a connection after the server is gone.
  acceptor.log = [refusals = std::weak_ptr<Refusals>(impl->refusals)](const std::string& address,
                                                                      const absl::Status& why) {
    if (const auto alive = refusals.lock(); alive != nullptr) alive->Log(address, why);
  };
  ASSIGN_OR_RETURN(impl->acceptor, Acceptor::Listen(acceptor));
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

std::string Server::token() const { return impl_->admissions.token(); }

void Server::Serve(std::shared_ptr<host::CoreThread> core) {
  impl_->admissions.Serve(std::move(core));
}

absl::StatusOr<std::shared_ptr<host::CoreThread>> Server::Serving() const {
  return impl_->admissions.Serving();
}

void Server::Refuse(absl::Status why) { impl_->admissions.Refuse(std::move(why)); }

void Server::Shutdown(absl::Duration drain) { impl_->Shutdown(drain); }

}  // namespace cadre::service
