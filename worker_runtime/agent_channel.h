// From a worker to its agent, the gRPC channel and the socket for the store: arguments, token,
// deadlines and repetition of calls that did not get through. Thread safe.
#ifndef CADRE_WORKER_RUNTIME_AGENT_CHANNEL_H_
#define CADRE_WORKER_RUNTIME_AGENT_CHANNEL_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "proto/local.grpc.pb.h"
#include "proto/store.pb.h"
#include "worker_runtime/store_stream.h"

namespace cadre {

class AgentChannel {
 public:
  AgentChannel(const std::string& socket, const std::string& token);

  absl::Status Hello(const v1::HelloRequest& request, v1::HelloReply* reply,
                     absl::Duration patience);

  // Ends with the generation, with the context being cancelled, or with the agent.
  absl::Status AwaitEnd(grpc::ClientContext* context, const v1::HelloRequest& request,
                        v1::GenerationEnd* reply);
  // Waits until there is a place, or the agent is gone.
  absl::Status TakePlace(const v1::TakePlaceRequest& request, v1::HelloReply* reply);
  absl::Status Rejoin(const v1::RejoinRequest& request, v1::HelloReply* reply,
                      absl::Duration timeout);

  // Repeats the request, which must be the same one to the server, while it does not get through:
  // for `patience`, or for as long as it waits. request.wait_ms says how long that is, and shrinks
  // with every repetition. The status is the reply's where the call came back with one.
  absl::Status Execute(v1::StoreRequest request, v1::StoreReply* reply, absl::Duration patience);

 private:
  using Call = std::function<grpc::Status(grpc::ClientContext*)>;
  // `wait`: what the callee may take before it answers.
  absl::Status CallOnce(absl::Duration wait, const Call& call) const;
  // In words for the person whose program this is.
  absl::Status Describe(const absl::Status& status, absl::Duration wait) const;

  const std::string socket_;
  const std::string token_;
  const std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Local::Stub> local_;
  StoreStream store_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_RUNTIME_AGENT_CHANNEL_H_
