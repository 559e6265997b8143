// One node's stream (Rendezvous.Attach) between gRPC and the core thread.
#ifndef CADRE_RENDEZVOUS_SERVICE_NODE_STREAM_H_
#define CADRE_RENDEZVOUS_SERVICE_NODE_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/service/core_thread.h"

namespace cadre {

// What may wait for a node that does not read. More than any burst: a key of the largest size to
// each of 250 workers of one node. A node that is further behind is closed with RESOURCE_EXHAUSTED;
// it connects again and learns the newest state.
inline constexpr size_t kOutboxMessagesMax = 4096;
inline constexpr size_t kOutboxBytesMax = 16 << 20;
// How long a stream that is being closed waits for its node to read the rest.
inline constexpr absl::Duration kCloseTimeout = absl::Seconds(5);

using NodeReactor = grpc::ServerBidiReactor<v1::NodeMessage, v1::ServerMessage>;

// Serves the stream; it deletes itself when gRPC is done with it.
NodeReactor* ServeNodeStream(std::shared_ptr<CoreThread> core,
                             grpc::CallbackServerContext* context);

// Ends the stream at once.
NodeReactor* RefuseNodeStream(const absl::Status& status);

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_SERVICE_NODE_STREAM_H_
