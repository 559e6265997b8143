#include "worker_runtime/store_server.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/token.h"
#include "proto/store.grpc.pb.h"
#include "rpc/channel_arguments.h"
#include "worker_runtime/generation_store.h"

namespace cadre {
namespace {

// What runs when the server ends may take so long to notice.
constexpr absl::Duration kDrainTimeout = absl::Milliseconds(500);

// Each call has a thread of gRPC's while it waits.
class StoreService : public v1::Store::Service {
 public:
  StoreService(int world_size, std::string token)
      : world_size_(world_size), token_(std::move(token)), store_(world_size) {}

  grpc::Status Execute(grpc::ServerContext* context, const v1::StoreRequest* request,
                       v1::StoreReply* reply) override {
    const auto found = context->client_metadata().find(kTokenMetadata);
    if (found == context->client_metadata().end() ||
        !EqualConstantTime(absl::string_view(found->second.data(), found->second.size()), token_)) {
      return {grpc::StatusCode::UNAUTHENTICATED, "the token is missing or wrong"};
    }
    reply->set_client(request->client());
    reply->set_request_id(request->request_id());
    return ToGrpcStatus(Do(*request, reply));
  }

  void End() { store_.End(absl::UnavailableError("rank 0 has ended")); }

 private:
  absl::Status Do(const v1::StoreRequest& request, v1::StoreReply* reply) {
    const absl::Duration wait = absl::Milliseconds(request.wait_ms());
    switch (request.operation_case()) {
      case v1::StoreRequest::kSet:
        return store_.Set(request.set().key(), request.set().value());
      case v1::StoreRequest::kGet: {
        ASSIGN_OR_RETURN(*reply->mutable_value(), store_.Get(request.get().key(), wait));
        return absl::OkStatus();
      }
      case v1::StoreRequest::kAdd: {
        ASSIGN_OR_RETURN(const int64_t sum, store_.Add(request.add().key(), request.add().delta()));
        reply->set_number(sum);
        return absl::OkStatus();
      }
      case v1::StoreRequest::kCompareAndSet: {
        const v1::CompareAndSetKey& swap = request.compare_and_set();
        ASSIGN_OR_RETURN(*reply->mutable_value(),
                         store_.CompareAndSet(swap.key(), swap.expected(), swap.desired()));
        return absl::OkStatus();
      }
      case v1::StoreRequest::kDelete:
        return store_.Delete(request.delete_().key());
      case v1::StoreRequest::kBarrier:
        return Barrier(request, wait);
      case v1::StoreRequest::kPublishId:
        return store_.PublishCommunicatorId(request.publish_id().communicator(),
                                            request.publish_id().id());
      case v1::StoreRequest::kGetId: {
        ASSIGN_OR_RETURN(*reply->mutable_value(),
                         store_.CommunicatorId(request.get_id().communicator(), wait));
        return absl::OkStatus();
      }
      case v1::StoreRequest::OPERATION_NOT_SET:
        break;
    }
    return absl::InvalidArgumentError("the request holds no operation");
  }

  absl::Status Barrier(const v1::StoreRequest& request, absl::Duration wait) {
    const v1::EnterBarrier& barrier = request.barrier();
    if (request.rank() < 0 || request.rank() >= world_size_ || barrier.size() != 0) {
      return absl::InvalidArgumentError(absl::StrCat("barrier \"", barrier.name(), "\": rank ",
                                                     request.rank(), " of ", barrier.size(),
                                                     " does not fit a world of ", world_size_));
    }
    return store_.Barrier(request.rank(), barrier.name(), wait);
  }

  const int world_size_;
  const std::string token_;
  GenerationStore store_;
};

}  // namespace

struct StoreServer::State {
  State(int world_size, const std::string& token) : service(world_size, token) {}

  StoreService service;
  std::unique_ptr<grpc::Server> server;
  std::string endpoint;
};

absl::StatusOr<std::unique_ptr<StoreServer>> StoreServer::Start(const std::string& address,
                                                                int world_size,
                                                                const std::string& token) {
  QuietGrpcLog();
  auto state = std::make_unique<State>(world_size, token);
  grpc::ServerBuilder builder;
  SetServerArguments(builder);
  int port = 0;
  builder.AddListeningPort(address + ":0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&state->service);
  state->server = builder.BuildAndStart();
  if (state->server == nullptr || port == 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen at ", address));
  }
  state->endpoint = absl::StrCat(address, ":", port);
  return std::unique_ptr<StoreServer>(new StoreServer(std::move(state)));
}

StoreServer::StoreServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

StoreServer::~StoreServer() {
  state_->service.End();
  state_->server->Shutdown(absl::ToChronoTime(absl::Now() + kDrainTimeout));
}

const std::string& StoreServer::endpoint() const { return state_->endpoint; }

}  // namespace cadre
