#include "rendezvous/service/server.h"

#include <grpcpp/grpcpp.h>
#include <sys/resource.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/bearer_token.h"
#include "base/status_macros.h"
#include "base/tokens/renewed_token.h"
#include "proto/control.grpc.pb.h"
#include "proto/rendezvous.grpc.pb.h"
#include "proto/store.grpc.pb.h"
#include "rendezvous/service/admission.h"
#include "rendezvous/service/call_threads.h"
#include "rendezvous/service/calls.h"
#include "rendezvous/service/listen_check.h"
#include "rendezvous/service/node_stream.h"
#include "rendezvous/service/token_check.h"
#include "rpc/channels.h"
#include "rpc/status_details.h"
#include "rpc/tls/server_security.h"

namespace cadre::service {
namespace {

constexpr int kListenAttempts = 5;
// Between two looks at the token and the TLS files.
constexpr std::chrono::seconds kRenewalInterval(1);
constexpr absl::Duration kListenPause = absl::Milliseconds(10);

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

// Each connection is an open file. gRPC stops accepting for good when it once fails for want of
// one.
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
        token(options.token, options.token_file) {}

  ~Impl() {
    if (renewal.joinable()) {
      {
        const std::lock_guard<std::mutex> lock(mutex);
        stopping = true;
      }
      changed.notify_all();
      renewal.join();
    }
    // Before the threads end.
    if (server != nullptr) server->Shutdown(std::chrono::system_clock::now());
  }

  void BeginRenewal() {
    if (options.token_file.empty() && options.security.tls_dir.empty()) return;
    renewal = std::thread([this] {
      std::unique_lock<std::mutex> lock(mutex);
      while (!changed.wait_for(lock, kRenewalInterval, [this] { return stopping; })) {
        lock.unlock();
        Renew();
        lock.lock();
      }
    });
  }

  void Renew() {
    const std::string now = token.Current();
    const bool other_token = now != gate.token();
    // Only a token makes another key.
    if (!other_token && options.security.tls_dir.empty()) return said.clear();
    const absl::StatusOr<bool> renewed = security->Renew(now);
    if (!renewed.ok())
      return Say(absl::StrCat("goes on with the token and certificates that it had: ",
                              renewed.status().message()));
    if (other_token) gate.SetToken(now);
    if (other_token || *renewed) {
      Say(other_token ? "has another token now; connections that are open stay"
                      : "has other certificates now; connections that are open stay");
    }
    said.clear();
  }

  // Each state once.
  void Say(const std::string& line) {
    if (line != said && options.log) options.log(line);
    said = line;
  }

  void Serve() {
    ServeNodeStreams(rendezvous, *threads, admission);
    ServeStore(store, *threads, admission);
    ServeControl(control, *threads, admission);
    threads->Start();
  }

  const ServerOptions options;
  Gate gate;
  RenewedToken token;
  // The last line of the thread below.
  std::string said;
  std::mutex mutex;
  std::condition_variable changed;
  bool stopping = false;
  std::thread renewal;
  const Admission admission = [this](const grpc::ServerContext& call) { return gate.Pass(call); };
  v1::Rendezvous::AsyncService rendezvous;
  v1::Store::AsyncService store;
  v1::Control::AsyncService control;
  int port = 0;
  std::unique_ptr<rpc::ServerSecurity> security;
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
  RETURN_IF_ERROR(CheckListen(options.host, options.port));
  rpc::QuietGrpcLog();
  RaiseOpenFiles();
  const std::string address = HostPort(options.host, options.port);
  absl::BitGen random;
  for (int attempt = 1; attempt <= kListenAttempts; ++attempt) {
    // Anew, since services can be registered only once.
    auto impl = std::make_unique<Impl>(options, core);
    ASSIGN_OR_RETURN(impl->security, rpc::ServerSecurity::Make(options.security, options.token));
    grpc::ServerBuilder builder;
    rpc::SetServerArguments(builder);
    builder.AddListeningPort(address, impl->security->Credentials(), &impl->port);
    builder.RegisterService(&impl->rendezvous);
    builder.RegisterService(&impl->store);
    builder.RegisterService(&impl->control);
    impl->threads = std::make_unique<CallThreads>(builder.AddCompletionQueue());
    impl->server = builder.BuildAndStart();
    if (impl->server != nullptr && impl->port != 0) {
      impl->Serve();
      impl->BeginRenewal();
      return std::unique_ptr<Server>(new Server(std::move(impl)));
    }
    // Somebody may have taken the port since it was checked. Two that listen in the same instant
    // can both be refused, though: Linux sees each of them listening.
    RETURN_IF_ERROR(CheckListen(options.host, options.port));
    absl::SleepFor(absl::Uniform(random, 0.0, 1.0) * attempt * kListenPause);
  }
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", address,
                   options.security.tls_dir.empty() ? "" : "; check ca.pem, cert.pem and key.pem"));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() { Shutdown(absl::ZeroDuration()); }

int Server::port() const { return impl_->port; }

std::string Server::token() const { return impl_->gate.token(); }

void Server::Serve(std::shared_ptr<host::CoreThread> core) { impl_->gate.Serve(std::move(core)); }

absl::StatusOr<std::shared_ptr<host::CoreThread>> Server::Serving() const {
  return impl_->gate.Serving();
}

void Server::Refuse(absl::Status why) { impl_->gate.Refuse(std::move(why)); }

void Server::Shutdown(absl::Duration drain) {
  impl_->server->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(drain));
}

}  // namespace cadre::service
