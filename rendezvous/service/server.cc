#include "rendezvous/service/server.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/channel_arguments.h"
#include "proto/control.grpc.pb.h"
#include "proto/rendezvous.grpc.pb.h"
#include "proto/store.grpc.pb.h"
#include "rendezvous/service/calls.h"
#include "rendezvous/service/listen_check.h"
#include "rendezvous/service/node_stream.h"
#include "rendezvous/service/token_check.h"

namespace cadre {
namespace {

// What every service needs.
struct Gate {
  CoreThread& core;
  const std::string token;
};

class RendezvousService final : public v1::Rendezvous::CallbackService {
 public:
  explicit RendezvousService(const Gate& gate) : gate_(gate) {}
  NodeReactor* Attach(grpc::CallbackServerContext* context) override {
    const absl::Status allowed = CheckToken(*context, gate_.token);
    if (!allowed.ok()) return RefuseNodeStream(allowed);
    return ServeNodeStream(gate_.core, context);
  }

 private:
  const Gate& gate_;
};

class StoreService final : public v1::Store::CallbackService {
 public:
  explicit StoreService(const Gate& gate) : gate_(gate) {}
  grpc::ServerUnaryReactor* Execute(grpc::CallbackServerContext* context,
                                    const v1::StoreRequest* request,
                                    v1::StoreReply* reply) override {
    const absl::Status allowed = CheckToken(*context, gate_.token);
    if (!allowed.ok()) return RefuseCall(allowed);
    return ServeStoreCall(gate_.core, *request, reply);
  }

 private:
  const Gate& gate_;
};

class ControlService final : public v1::Control::CallbackService {
 public:
  explicit ControlService(const Gate& gate) : gate_(gate) {}
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                     const v1::ListJobsRequest*,
                                     v1::ListJobsReply* reply) override {
    const absl::Status allowed = CheckToken(*context, gate_.token);
    if (!allowed.ok()) return RefuseCall(allowed);
    return ServeListJobs(gate_.core, reply);
  }
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                   const v1::GetJobRequest* request,
                                   v1::JobStatus* reply) override {
    const absl::Status allowed = CheckToken(*context, gate_.token);
    if (!allowed.ok()) return RefuseCall(allowed);
    return ServeGetJob(gate_.core, *request, reply);
  }
  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext* context,
                                      const v1::CancelJobRequest* request,
                                      v1::JobStatus* reply) override {
    const absl::Status allowed = CheckToken(*context, gate_.token);
    if (!allowed.ok()) return RefuseCall(allowed);
    return ServeCancelJob(gate_.core, *request, reply);
  }

 private:
  const Gate& gate_;
};

absl::Status CheckExposure(const ServerOptions& options) {
  if (!options.token.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const bool loopback, IsLoopback(options.host));
  if (loopback) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a server on ", options.host,
                   " can be reached from other machines and needs a token: give --token-file"));
}

}  // namespace

struct Server::Impl {
  Impl(CoreThread& core, const std::string& token) : gate{core, token} {}

  const Gate gate;
  RendezvousService rendezvous{gate};
  StoreService store{gate};
  ControlService control{gate};
  int port = 0;
  // Last, so that it is gone before the services are.
  std::unique_ptr<grpc::Server> server;
};

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      CoreThread& core) {
  RETURN_IF_ERROR(CheckExposure(options));
  RETURN_IF_ERROR(CheckListen(options.host, options.port));
  QuietGrpcLog();
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ServerCredentials> credentials,
                   MakeServerCredentials(options.security));
  auto impl = std::make_unique<Impl>(core, options.token);
  const std::string address = HostPort(options.host, options.port);
  grpc::ServerBuilder builder;
  SetServerArguments(builder);
  builder.AddListeningPort(address, credentials, &impl->port);
  builder.RegisterService(&impl->rendezvous);
  builder.RegisterService(&impl->store);
  builder.RegisterService(&impl->control);
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr || impl->port == 0) {
    // Somebody may have taken the port since it was checked.
    RETURN_IF_ERROR(CheckListen(options.host, options.port));
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address,
                     options.security.tls_dir.empty()
                         ? ""
                         : "; check that cert.pem, key.pem and ca.pem belong together"));
  }
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() { Shutdown(absl::ZeroDuration()); }

int Server::port() const { return impl_->port; }

void Server::Shutdown(absl::Duration drain) {
  impl_->server->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(drain));
}

}  // namespace cadre
