#include "rendezvous/service/server.h"

#include <grpcpp/grpcpp.h>
#include <sys/resource.h>

#include <chrono>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/bearer_token.h"
#include "base/status_macros.h"
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
#include "rpc/credentials.h"
#include "rpc/status_details.h"

namespace cadre::service {
namespace {

constexpr int kListenAttempts = 5;
constexpr absl::Duration kListenPause = absl::Milliseconds(10);

// Asked first by every service: whether the caller may come in, and which core serves it.
class Gate {
 public:
  Gate(std::shared_ptr<host::CoreThread> core, std::string token)
      : token_(std::move(token)), core_(std::move(core)) {}

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
    ASSIGN_OR_RETURN(admitted.bearer, CheckToken(context, token_));
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
  const std::string token_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<host::CoreThread> core_ ABSL_GUARDED_BY(mutex_);
  absl::Status closed_ ABSL_GUARDED_BY(mutex_) =
      rpc::NotLeading(absl::StrCat(kInReserve, ": it has just started"));
};

absl::Status CheckExposure(const ServerOptions& options) {
  if (!options.token.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const bool loopback, IsLoopback(options.host));
  if (loopback) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a server on ", options.host,
                   " can be reached from other machines and needs a token: give --token-file"));
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
  Impl(std::shared_ptr<host::CoreThread> core, const std::string& token)
      : gate(std::move(core), token) {}

  ~Impl() {
    // Before the threads end.
    if (server != nullptr) server->Shutdown(std::chrono::system_clock::now());
  }

  void Serve() {
    ServeNodeStreams(rendezvous, *threads, admission);
    ServeStore(store, *threads, admission);
    ServeControl(control, *threads, admission);
    threads->Start();
  }

  Gate gate;
  const Admission admission = [this](const grpc::ServerContext& call) { return gate.Pass(call); };
  v1::Rendezvous::AsyncService rendezvous;
  v1::Store::AsyncService store;
  v1::Control::AsyncService control;
  int port = 0;
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
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ServerCredentials> credentials,
                   rpc::MakeServerCredentials(options.security));
  const std::string address = HostPort(options.host, options.port);
  absl::BitGen random;
  for (int attempt = 1; attempt <= kListenAttempts; ++attempt) {
    // Anew, since services can be registered only once.
    auto impl = std::make_unique<Impl>(core, options.token);
    grpc::ServerBuilder builder;
    rpc::SetServerArguments(builder);
    builder.AddListeningPort(address, credentials, &impl->port);
    builder.RegisterService(&impl->rendezvous);
    builder.RegisterService(&impl->store);
    builder.RegisterService(&impl->control);
    impl->threads = std::make_unique<CallThreads>(builder.AddCompletionQueue());
    impl->server = builder.BuildAndStart();
    if (impl->server != nullptr && impl->port != 0) {
      impl->Serve();
      return std::unique_ptr<Server>(new Server(std::move(impl)));
    }
    // Somebody may have taken the port since it was checked. Two that listen in the same instant
    // can both be refused, though: Linux sees each of them listening.
    RETURN_IF_ERROR(CheckListen(options.host, options.port));
    absl::SleepFor(absl::Uniform(random, 0.0, 1.0) * attempt * kListenPause);
  }
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", address,
                   options.security.tls_dir.empty()
                       ? ""
                       : "; check that cert.pem, key.pem and ca.pem belong together"));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() { Shutdown(absl::ZeroDuration()); }

int Server::port() const { return impl_->port; }

void Server::Serve(std::shared_ptr<host::CoreThread> core) { impl_->gate.Serve(std::move(core)); }

absl::StatusOr<std::shared_ptr<host::CoreThread>> Server::Serving() const {
  return impl_->gate.Serving();
}

void Server::Refuse(absl::Status why) { impl_->gate.Refuse(std::move(why)); }

void Server::Shutdown(absl::Duration drain) {
  impl_->server->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(drain));
}

}  // namespace cadre::service
