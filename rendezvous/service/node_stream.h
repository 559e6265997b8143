// One node's stream (Rendezvous.Attach) between gRPC and the core thread.
#ifndef CADRE_RENDEZVOUS_SERVICE_NODE_STREAM_H_
#define CADRE_RENDEZVOUS_SERVICE_NODE_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>

#include "absl/time/time.h"
#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/service/admission.h"
#include "rendezvous/service/call_threads.h"

namespace cadre::service {

// Messages that may wait for a node that does not read. More than any burst: a key of the largest
// size to each of 250 workers of one node. A node that is further behind is closed with
// RESOURCE_EXHAUSTED; it connects again and learns the newest state.
inline constexpr size_t kWaitingMessagesMax = 4096;
inline constexpr size_t kWaitingBytesMax = 16 << 20;
// How long a stream that is being closed waits for its node to read the rest.
inline constexpr absl::Duration kCloseTimeout = absl::Seconds(5);

// Serves every stream that comes, until the server is shut down. Service, threads and admission
// must outlive the server. `greeting`: what it says of itself, a value of rpc::kServerMetadata.
void ServeNodeStreams(v1::Rendezvous::AsyncService& service, CallThreads& threads,
                      const Admission& admission, const char* greeting);

}  // namespace cadre::service

#endif  // CADRE_RENDEZVOUS_SERVICE_NODE_STREAM_H_
